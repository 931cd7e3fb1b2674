#!/usr/bin/env python3
"""A tool call of an agent harness: `harness.py TIMEOUT COMMAND` runs the COMMAND of a model through treekill-run and
prints the text that the model is given. SIGINT cancels the call, a second one ends it at once."""

import asyncio
import contextlib
import json
import os
import signal
import sys

OPTIONS = "--quiet --new-session --die-with-parent --kill-after 3s --drain-limit 2s".split()
KEPT = 16 * 1024  # bytes that are kept of the beginning of the output, and as many of its end
LISTED = 20  # processes that are named at most
LAST_WORDS = 1  # seconds that are waited for output that survivors hold open
INNER = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that begin no character


async def call(timeout, command):
    """Runs the command and returns the text. Cancelling the task asks the tree to end, cancelling it again kills it.

    Nothing of the tree is alive when treekill-run has ended, so its pipes end then too: no read needs a time limit.
    """
    starting = asyncio.create_task(start(timeout, command))
    result = asyncio.create_task(finish(starting, timeout))
    while not result.done():
        try:
            await asyncio.shield(result)
        except asyncio.CancelledError:
            starting.add_done_callback(terminate)  # a start that was cancelled half way might leave something
    return result.result()


async def start(timeout, command):
    # Closed at exec, as all that Python opens, but for what is named below.
    (output, output_end), (report, report_end) = os.pipe(), os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *("treekill-run", *OPTIONS, "--timeout", timeout, "--report-fd", str(report_end)),
            *("--", "bash", "-c", command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output_end,  # not a PIPE of asyncio's, whose wait() goes on while anybody has it open
            stderr=output_end,
            pass_fds=[report_end],
        )
    except BaseException:
        os.close(output)
        os.close(report)
        raise
    finally:
        os.close(output_end)  # while we have them open too, neither pipe ends
        os.close(report_end)
    return process, output, report


def terminate(starting):
    if starting.exception() is None:
        with contextlib.suppress(ProcessLookupError):  # it may have ended just now
            starting.result()[0].terminate()


async def finish(starting, timeout):
    try:
        process, output_pipe, report_pipe = await starting
    except (OSError, ValueError) as error:  # a ValueError is for a command that has a null byte, say
        return f"not started: {error}"
    output, report = Output(), bytearray()
    reading = asyncio.create_task(read(output_pipe, output.add))
    await read(report_pipe, report.extend)  # meanwhile: it may be more than the pipe holds
    try:
        report = json.loads(report)
    except ValueError:  # there is none if treekill-run could not do its work, or was killed
        report = {}
    # Only survivors could hold the output open.
    await asyncio.wait([reading], timeout=LAST_WORDS if report.get("survivors") else None)
    reading.cancel()
    await asyncio.wait([reading])
    return describe(report, await process.wait(), timeout, output.text())


async def read(pipe, add):
    """Reads to the end, however much it is: a command whose pipe is full does not go on."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), open(pipe, "rb", buffering=0)
    )
    with contextlib.closing(transport):
        while data := await stream.read(64 * 1024):
            add(data)


def describe(report, status, timeout, text):
    """The text for the model."""
    match report:
        case {"outcome": "timed_out"}:
            lines = [f"timed out after {timeout}"]
        case {"outcome": "stopped"}:
            lines = ["cancelled"]
        case {"command_status": {"exited": number}}:
            lines = [f"exit status {number}"]
        case {"command_status": {"signaled": name}}:
            lines = [f"died of SIG{name}"]
        case _:
            lines = [f"not run: treekill-run ended with {status}"]
    text = text.removesuffix("\n")
    lines += ["output:", text] if text else ["no output"]
    if report.get("outcome") in ("timed_out", "stopped"):
        lines += listed("running when it was stopped", report["tree_at_stop"]["processes"])
    lines += listed("left running, now ended", report.get("leftovers", []))
    lines += listed("could not be ended", report.get("survivors", []))
    return "\n".join(lines)


def listed(title, processes):
    """A line for each process, below the one that started it."""
    lines = [f"{title}:"] if processes else []
    for process in processes[:LISTED]:
        words = " ".join(process["argv"] or [process["comm"]]).split()
        lines.append("  " * (process.get("depth", 0) + 1) + " ".join(words)[:100])
    if len(processes) > LISTED:
        lines.append(f"  and {len(processes) - LISTED} more")
    return lines


class Output:
    """The beginning and the end of what was printed."""

    def __init__(self):
        self.head = self.tail = b""
        self.length = 0

    def add(self, data):
        room = KEPT - len(self.head)
        self.length += len(data)
        self.head += data[:room]
        self.tail = (self.tail + data[room:])[-KEPT:]

    def text(self):
        if self.length == len(self.head) + len(self.tail):
            return (self.head + self.tail).decode(errors="replace")
        # Without the last character here, of which there may be only half, and the half of one there.
        head, tail = self.head.rstrip(INNER)[:-1], self.tail.lstrip(INNER)
        left_out = self.length - len(head) - len(tail)
        return f"{head.decode(errors='replace')}\n[{left_out} bytes left out]\n{tail.decode(errors='replace')}"


async def main():
    timeout, command = sys.argv[1:]
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, asyncio.current_task().cancel)
    print(await call(timeout, command))


if __name__ == "__main__":
    asyncio.run(main())
