#!/usr/bin/env -S python3 -B
"""Packs the release for Linux: a tarball, a Debian package, a wheel and an npm package of each architecture, each with the
static binary, the manual and the completions; bills of materials; and the checksums of all.

    tests/dist/pack.py DIRECTORY [ARCH...]

ARCH is x86_64 or aarch64. Without one both are tried, and the one that is not this machine's may be left out, with a line
that says why. The same commit gives the same bytes: all times are SOURCE_DATE_EPOCH, which is the last commit's if unset.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import crates


class Arch(NamedTuple):
    """What each packager calls an architecture."""

    debian: str
    npm: str


ARCHES = {"x86_64": Arch("amd64", "x64"), "aarch64": Arch("arm64", "arm64")}
DOCUMENTS = ["README.md", "CHANGELOG.md", "LICENSE"]
APACHE = re.compile(r"^ *Apache License\s+Version 2\.0, January 2004.*?END OF TERMS AND CONDITIONS\n", re.DOTALL | re.MULTILINE)
# To another file, and not to a place on the same page or elsewhere.
LINK = re.compile(r"\[([^]]+)\]\(([^):#]+)\)")
MAINTAINER = "The treekill-run authors <authors@treekill-run.invalid>"


class Release(NamedTuple):
    """What is packed, for one architecture."""

    package: dict
    arch: str
    program: Path
    notices: str
    seconds: int
    output: Path

    @property
    def version(self):
        return self.package["version"]

    def install(self, root, prefix, *variables):
        """Lays out what `make install` lays out, so that no package has another idea of that."""
        words = [f"BIN={self.program}", f"DESTDIR={root}", f"PREFIX={prefix}", *variables]
        subprocess.run(["make", "--silent", "--no-print-directory", "install", *words], check=True, stdout=sys.stderr)

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def documents(self, folder):
        for name in DOCUMENTS:
            self.write(folder / name, document(name))
        self.write(folder / "THIRD-PARTY-LICENSES", self.notices)

    def archive(self, name, folder, top):
        """A .tar.gz of a folder whose members are below `top`."""
        bytes = io.BytesIO()
        with tarfile.open(fileobj=bytes, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path in files(folder):
                info = tarfile.TarInfo(f"{top}/{path.relative_to(folder)}")
                info.size, info.mode, info.mtime = path.stat().st_size, mode(path), self.seconds
                tar.addfile(info, io.BytesIO(path.read_bytes()))
        (self.output / name).write_bytes(gzip.compress(bytes.getvalue(), mtime=self.seconds))


def document(name):
    """What it links to in the sources, and is in no package, is only named there."""

    def name_only(link):
        return link[0] if link[2] in DOCUMENTS else f"{link[1]} (`{link[2]}` of the sources)"

    return LINK.sub(name_only, Path(name).read_text())


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def mode(path):
    """Whatever the umask was."""
    return 0o755 if os.access(path, os.X_OK) and path.parent.name in ("bin", "scripts") else 0o644


# ------------------------------------------------------------------------------------------- the packages


def tarball(release, work):
    """To be unpacked below /usr/local, say, without its first folder."""
    name = f"treekill-run-{release.version}-{release.arch}-linux"
    release.install(work, "/")
    release.documents(work / "share/doc/treekill-run")
    release.archive(f"{name}.tar.gz", work, name)


def deb(release, work):
    if not shutil.which("dpkg-deb"):
        say("no Debian package: there is no dpkg-deb")
        return
    release.install(work, "/usr", f"ZSHDIR={work}/usr/share/zsh/vendor-completions")
    doc = work / "usr/share/doc/treekill-run"
    # Debian has the long text already, and wants it named.
    texts = f"{Path('LICENSE').read_text()}\n{'-' * 79}\n\n{release.notices}"
    release.write(doc / "copyright", APACHE.sub("The Apache License 2.0: /usr/share/common-licenses/Apache-2.0\n", texts))
    date = subprocess.run(
        ["date", "--utc", "--rfc-email", f"--date=@{release.seconds}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    entry = f"treekill-run ({release.version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n"
    release.write(doc / "changelog", f"{entry} -- {MAINTAINER}  {date}\n")
    release.write(doc / "CHANGELOG.md", Path("CHANGELOG.md").read_text())
    for page in (work / "usr/share/man/man1/treekill-run.1", doc / "changelog", doc / "CHANGELOG.md"):
        page.with_name(page.name + ".gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        page.unlink()
    # The binary brings its C library along on purpose: its programs start four times faster, and anywhere.
    release.write(work / "usr/share/lintian/overrides/treekill-run", "treekill-run: statically-linked-binary\n")
    size = sum(path.stat().st_size for path in files(work)) // 1024
    control = {
        "Package": "treekill-run",
        "Version": release.version,
        "Architecture": ARCHES[release.arch].debian,
        "Maintainer": MAINTAINER,
        "Installed-Size": size,
        "Section": "utils",
        "Priority": "optional",
        "Description": "run a command and end everything it started\n"
        " treekill-run is used like timeout(1), in front of any command. When it\n"
        " returns, nothing that the command started is alive: not what called\n"
        " setsid, forked twice or ignored SIGTERM either. It holds the whole tree, in\n"
        " a cgroup where one can be had and by ancestry everywhere.",
    }
    sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(work)}\n" for path in files(work))
    release.write(work / "DEBIAN/md5sums", "".join(sums))
    release.write(work / "DEBIAN/control", "".join(f"{key}: {value}\n" for key, value in control.items()))
    for path in [work, *work.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else mode(path))
        os.utime(path, (release.seconds, release.seconds))
    file = release.output / f"treekill-run_{release.version}_{ARCHES[release.arch].debian}.deb"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release.seconds)}
    build = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", work, file]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, env=environment)


def wheel(release, work):
    """A wheel is a zip; the binary is one of its scripts, which pip puts beside python itself."""
    name = f"treekill_run-{release.version}"
    tags = [f"manylinux_2_17_{release.arch}", f"manylinux2014_{release.arch}", f"musllinux_1_1_{release.arch}"]
    release.install(work / "root", "/")
    data, info = work / "wheel" / f"{name}.data", work / "wheel" / f"{name}.dist-info"
    data.mkdir(parents=True)
    (work / "root/bin").rename(data / "scripts")
    (work / "root").rename(data / "data")
    release.documents(info / "licenses")
    metadata = {
        "Metadata-Version": "2.4",
        "Name": "treekill-run",
        "Version": release.version,
        "Summary": release.package["description"],
        "License-Expression": release.package["license"],
        "License-File": "LICENSE",
        "Keywords": ",".join(release.package["keywords"]),
        "Classifier": "Operating System :: POSIX :: Linux",
        "Description-Content-Type": "text/markdown",
    }
    fields = "".join(f"{key}: {value}\n" for key, value in metadata.items())
    release.write(info / "METADATA", f"{fields}\n{document('README.md')}")
    tag_lines = "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    release.write(info / "WHEEL", f"Wheel-Version: 1.0\nGenerator: treekill-run\nRoot-Is-Purelib: false\n{tag_lines}")
    record = ""
    members = [(str(path.relative_to(work / "wheel")), path.read_bytes(), mode(path)) for path in files(work / "wheel")]
    for path, bytes, _ in members:
        digest = base64.urlsafe_b64encode(hashlib.sha256(bytes).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(bytes)}\n"
    path = f"{name}.dist-info/RECORD"
    members.append((path, f"{record}{path},,\n".encode(), 0o644))
    with zipfile.ZipFile(release.output / f"{name}-py3-none-{'.'.join(tags)}.whl", "w") as zip:
        for path, bytes, bits in members:
            # A zip has no time zone, and its times are of even seconds.
            member = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            # Made by Unix, where a plain file has these bits.
            member.create_system, member.external_attr = 3, (stat.S_IFREG | bits) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            zip.writestr(member, bytes)


def npm(release, work):
    """Its command is the binary itself: node would be one more process, and not a transparent one."""
    cpu = ARCHES[release.arch].npm
    release.install(work, "/")
    # npm links manuals, and nothing for shells.
    for shell in ("bash-completion", "fish", "zsh"):
        shutil.rmtree(work / "share" / shell)
    release.documents(work)
    package = {
        "name": f"treekill-run-linux-{cpu}",
        "version": release.version,
        "description": release.package["description"],
        "license": release.package["license"],
        "keywords": release.package["keywords"],
        "os": ["linux"],
        "cpu": [cpu],
        "bin": {"treekill-run": "bin/treekill-run"},
        "man": ["share/man/man1/treekill-run.1"],
    }
    release.write(work / "package.json", json.dumps(package, indent=2) + "\n")
    release.archive(f"treekill-run-linux-{cpu}-{release.version}.tgz", work, "package")


def materials(release, _work):
    text = crates.bill(f"{release.arch}-unknown-linux-musl", release.seconds)
    (release.output / f"treekill-run-{release.version}-{release.arch}-linux.cdx.json").write_text(text)


# ------------------------------------------------------------------------------------------------- main


def say(text):
    print(f"pack: {text}", file=sys.stderr)


def commit_time():
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    try:
        return int(crates.output("git", "-c", "safe.directory=*", "log", "-1", "--format=%ct"))
    except (OSError, subprocess.CalledProcessError):
        sys.exit("pack: cannot tell the time of the last commit: set SOURCE_DATE_EPOCH")


def build(arch, program):
    words = ["tests/dist/build", "musl", program, arch]
    return subprocess.run(words, stdout=sys.stderr).returncode == 0


def main():
    output, wanted = Path(sys.argv[1]).absolute(), sys.argv[2:]
    os.chdir(Path(__file__).parents[2])
    os.umask(0o022)
    seconds, package = commit_time(), crates.package()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="treekill-dist.") as work:
        for arch in wanted or ARCHES:
            program = Path(work, arch, "treekill-run")
            if not build(arch, program):
                if wanted or arch == platform.machine():
                    sys.exit(f"pack: cannot build for {arch}")
                say(f"left out: {arch}")
                continue
            notices = crates.notices(f"{arch}-unknown-linux-musl")
            release = Release(package, arch, program, notices, seconds, output)
            for pack in (tarball, deb, wheel, npm, materials):
                folder = Path(work, arch, pack.__name__)
                folder.mkdir()
                pack(release, folder)
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files(output))
    (output / "SHA256SUMS").write_text("".join(sums))


main()
