"""An MCP client: starts the server that its configuration names, greets it, and on a line of stdin closes it as the
protocol has it: end of file, SIGTERM, and after so many seconds SIGKILL. Says on descriptor 9 what came of that."""
import json
import os
import subprocess
import sys


def say(*words):
    os.write(9, " ".join(map(str, words)).encode() + b"\n")


def send(server, message):
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()


def ask(server, number, method, params):
    send(server, {"id": number, "method": method, "params": params})
    answer = json.loads(server.stdout.readline())
    assert answer["id"] == number, answer
    return answer["result"]


def close(server):
    server.stdin.close()
    for patience, insist in ((0.3, server.terminate), (float(sys.argv[2]), server.kill)):
        try:
            return server.wait(patience)
        except subprocess.TimeoutExpired:
            insist()
    return server.wait()


with open(sys.argv[1], encoding="utf-8") as file:
    entry = json.load(file)["mcpServers"]["files"]
pipe = subprocess.PIPE
server = subprocess.Popen([entry["command"], *entry["args"]], stdin=pipe, stdout=pipe, text=True, close_fds=False)
hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "client", "version": "1"}}
assert ask(server, 1, "initialize", hello)["serverInfo"]["name"] == "files"
send(server, {"method": "notifications/initialized"})
assert ask(server, 2, "tools/list", {}) == {"tools": []}
say("listed", 0)
sys.stdin.readline()
say("closed", close(server))
