#!/usr/bin/env node
// A tool call of an agent harness: `harness.mjs TIMEOUT COMMAND` runs the COMMAND of a model through treekill-run and
// prints the text that the model is given. SIGINT cancels the call, a second one ends it at once.

import { spawn } from "node:child_process";
import { realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";

const OPTIONS = ["--quiet", "--new-session", "--die-with-parent", "--kill-after", "3s", "--drain-limit", "2s"];
const KEPT = 16 * 1024; // bytes that are kept of the beginning of the output, and as many of its end
const LISTED = 20; // processes that are named at most
const LAST_WORDS = 1000; // milliseconds that are waited for output that survivors hold open

/**
 * Starts the command. `text` is a promise of the text for the model; `cancel()` asks the tree to end, a second time it
 * kills it. Nothing of the tree is alive when treekill-run has ended, so its pipes end then too: no read needs a time
 * limit.
 */
export function call(timeout, command) {
  // Node can't give a child one pipe as both stdout and stderr: without a shell's 2>&1 their order would be lost. What it
  // calls pipes are sockets, which nobody can open by the names /dev/stdout and /dev/stderr.
  const words = ["bash", "-c", 'exec bash -c "$0" 2>&1', command];
  let child;
  try {
    child = spawn(
      "treekill-run",
      [...OPTIONS, "--timeout", timeout, "--report-fd", "3", "--", ...words],
      { stdio: ["ignore", "pipe", "pipe", "pipe"] },
    );
  } catch (error) {
    // Not all errors are events: a command that has a null byte or is too long is thrown.
    return { text: Promise.resolve(`not started: ${error.message}`), cancel: () => false };
  }
  const [, stdout, stderr, reporting] = child.stdio;
  const output = new Output();
  let report = "";
  stdout.on("data", (data) => output.add(data));
  stderr.on("data", (data) => output.add(data)); // what treekill-run says of its own errors
  reporting.setEncoding("utf8").on("data", (text) => (report += text));
  reporting.on("end", () => {
    report = parsed(report);
    // Only survivors could hold the output open.
    const close = () => [stdout, stderr].forEach((stream) => stream.destroy());
    if (report.survivors?.length) setTimeout(close, LAST_WORDS);
  });
  const text = new Promise((resolve) => {
    // Without a listener this would end the harness.
    child.on("error", (error) => resolve(`not started: ${error.message}`));
    // `exit` would come before the last of the output.
    child.on("close", (status, signal) => resolve(describe(report, status ?? signal, timeout, output)));
  });
  return { text, cancel: () => child.kill("SIGTERM") };
}

/** There is none if treekill-run could not do its work, or was killed. */
function parsed(report) {
  try {
    return JSON.parse(report);
  } catch {
    return {};
  }
}

/** The text for the model. */
function describe(report, status, timeout, output) {
  const ends = { timed_out: `timed out after ${timeout}`, stopped: "cancelled" };
  const { exited, signaled } = report.command_status ?? {};
  const own = signaled ? `died of SIG${signaled}` : `exit status ${exited}`;
  const failed = `not run: treekill-run ended with ${status}`;
  const lines = [ends[report.outcome] ?? (report.command_status ? own : failed)];
  const text = output.text().replace(/\n$/, "");
  lines.push(...(text ? ["output:", text] : ["no output"]));
  if (ends[report.outcome]) lines.push(...listed("running when it was stopped", report.tree_at_stop.processes));
  lines.push(...listed("left running, now ended", report.leftovers ?? []));
  lines.push(...listed("could not be ended", report.survivors ?? []));
  return lines.join("\n");
}

/** A line for each process, below the one that started it. */
function listed(title, processes) {
  const lines = processes.length ? [`${title}:`] : [];
  for (const { argv, comm, depth = 0 } of processes.slice(0, LISTED)) {
    const words = (argv.join(" ") || comm).trim().replace(/\s+/g, " ");
    lines.push("  ".repeat(depth + 1) + [...words].slice(0, 100).join("")); // characters, not the halves of some
  }
  if (processes.length > LISTED) lines.push(`  and ${processes.length - LISTED} more`);
  return lines;
}

/** The beginning and the end of what was printed. */
class Output {
  #head = Buffer.alloc(0);
  #tail = Buffer.alloc(0);
  #length = 0;

  /** Takes all there is, however much: a command whose pipe is full does not go on. */
  add(data) {
    const room = KEPT - this.#head.length;
    this.#length += data.length;
    this.#head = Buffer.concat([this.#head, data.subarray(0, room)]);
    this.#tail = Buffer.concat([this.#tail, data.subarray(room)]).subarray(-KEPT);
  }

  text() {
    if (this.#length === this.#head.length + this.#tail.length) return Buffer.concat([this.#head, this.#tail]).toString();
    // Without the last character here, of which there may be only half, and the half of one there.
    const isFirst = (byte) => (byte & 0xc0) !== 0x80;
    const head = this.#head.subarray(0, Math.max(0, this.#head.findLastIndex(isFirst)));
    const begin = this.#tail.findIndex(isFirst);
    const tail = this.#tail.subarray(begin < 0 ? this.#tail.length : begin);
    return `${head}\n[${this.#length - head.length - tail.length} bytes left out]\n${tail}`;
  }
}

// Not where it is imported, also by `node -e`; its path may lead through a link.
if (process.argv[1] && fileURLToPath(import.meta.url) === realpathSync(process.argv[1])) {
  process.on("SIGINT", () => running.cancel());
  const running = call(...process.argv.slice(2));
  console.log(await running.text);
}
