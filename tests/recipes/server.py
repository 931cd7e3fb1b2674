"""An MCP server on stdio that starts a daemon. With STUBBORN in its environment it ends by nothing but SIGKILL."""
import json
import os
import signal
import subprocess
import sys

if "STUBBORN" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        result = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "files", "version": "1"},
        }
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    elif message["method"] == "notifications/initialized":
        os.write(9, b"server %d\n" % os.getpid())
        subprocess.run([os.environ["FX"], *"daemon [ say daemon hang ] exit 0".split()], close_fds=False)
    elif message["method"] == "tools/list":
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": []}}), flush=True)

while "STUBBORN" in os.environ:
    signal.pause()
