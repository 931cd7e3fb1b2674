"""What is in the program besides its own code: a CycloneDX bill of materials, and the notices that its parts' licenses ask for."""

import json
import re
import subprocess
import tomllib
import uuid
from datetime import datetime, timezone
from pathlib import Path

NOTICES = re.compile(r"(LICEN[SC]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.IGNORECASE)


def output(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def package():
    """The program's own entry in cargo's metadata."""
    metadata = json.loads(output("cargo", "metadata", "--format-version=1", "--no-deps", "--locked"))
    return next(one for one in metadata["packages"] if one["name"] == "treekill-run")


def linked(target):
    """The crates that are linked into the program for this target, each with what it depends on among them.

    cargo-metadata(1) unites the features of tests and program, cargo-tree(1) keeps them apart.
    """
    tree = ["cargo", "tree", "--locked", "--target", target, "--edges", "normal,no-proc-macro", "--prefix", "none"]
    names = {tuple(line.split()[:2]) for line in output(*tree, "--format", "{p}").splitlines() if line}
    metadata = json.loads(output("cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", target))
    crates = {one["id"]: one for one in metadata["packages"] if (one["name"], "v" + one["version"]) in names}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    for id, crate in crates.items():
        crate["linked"] = sorted(dep["pkg"] for dep in nodes[id]["deps"] if dep["pkg"] in crates)
    return sorted(crates.values(), key=lambda one: (one["name"], one["version"]))


def checksums():
    lock = tomllib.loads(Path("Cargo.lock").read_text())
    return {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}


def url(crate):
    return f"pkg:cargo/{crate['name']}@{crate['version']}"


def component(crate, sums):
    is_ours = crate["source"] is None
    found = {
        "type": "application" if is_ours else "library",
        "bom-ref": url(crate),
        "name": crate["name"],
        "version": crate["version"],
        "licenses": [{"expression": crate["license"].replace("/", " OR ")}],
        "purl": url(crate),
    }
    if crate["description"]:
        found["description"] = " ".join(crate["description"].split())
    if checksum := sums.get((crate["name"], crate["version"])):
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if crate["repository"]:
        found["externalReferences"] = [{"type": "vcs", "url": crate["repository"]}]
    return found


def toolchain(target):
    """The libraries that come with the compiler."""
    release = re.search(r"^release: (\S+)", output("rustc", "-vV"), re.MULTILINE)[1]
    parts = [{"name": "rust-std", "version": release, "licenses": [{"expression": "MIT OR Apache-2.0"}]}]
    libc = Path(output("rustc", "--print", "target-libdir", "--target", target).strip(), "self-contained", "libc.a")
    musl = {"name": "musl", "licenses": [{"license": {"id": "MIT"}}]}
    if libc.exists() and (version := re.search(rb"\0(1\.\d+\.\d+)\0", libc.read_bytes())):
        musl["version"] = version[1].decode()
    return [{"type": "library", "bom-ref": part["name"], **part} for part in (*parts, musl)]


def bill(target, seconds):
    """The bill of materials of the program for this target, as of this time."""
    crates, sums, bundled = linked(target), checksums(), toolchain(target)
    ours = next(crate for crate in crates if crate["source"] is None)
    by_id = {crate["id"]: url(crate) for crate in crates}
    depends = [{"ref": url(crate), "dependsOn": [by_id[id] for id in crate["linked"]]} for crate in crates]
    next(one for one in depends if one["ref"] == url(ours))["dependsOn"] += [part["bom-ref"] for part in bundled]
    text = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {**component(ours, sums), "properties": [{"name": "rust:target", "value": target}]},
        },
        "components": [component(crate, sums) for crate in crates if crate is not ours] + bundled,
        "dependencies": depends,
    }
    # Two bills of the same contents are one.
    text["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(text, sort_keys=True))}"
    return json.dumps(text, indent=2) + "\n"


MUSL = """\
Copyright © 2005-2020 Rich Felker, et al.

Permission is hereby granted, free of charge, to any person obtaining
a copy of this software and associated documentation files (the
"Software"), to deal in the Software without restriction, including
without limitation the rights to use, copy, modify, merge, publish,
distribute, sublicense, and/or sell copies of the Software, and to
permit persons to whom the Software is furnished to do so, subject to
the following conditions:

The above copyright notice and this permission notice shall be
included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND,
EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT.
IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY
CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT,
TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE
SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""


def notices(target):
    """The licenses of what is linked into the program for this target, each text once."""
    texts = {}
    for crate in linked(target):
        if crate["source"] is None:
            continue
        name = f"{crate['name']} {crate['version']} ({crate['license']})"
        files = [one for one in Path(crate["manifest_path"]).parent.iterdir() if NOTICES.match(one.name) and one.is_file()]
        for file in sorted(files):
            texts.setdefault(file.read_text().strip(), []).append(name)
        if not files:
            texts.setdefault("(its package has no text of the license)", []).append(name)
    texts.setdefault(MUSL, []).append("musl, the C library (MIT)")
    std = "Rust's standard library (MIT OR Apache-2.0)\nCopyright (c) The Rust Project Contributors"
    parts = ["treekill-run is linked with what follows.", std]
    # Crates often carry two texts of which one is chosen; a crate's name stands above both.
    parts += ["\n".join(dict.fromkeys(names)) + "\n\n" + text for text, names in texts.items()]
    return ("\n\n" + "-" * 79 + "\n\n").join(parts) + "\n"
