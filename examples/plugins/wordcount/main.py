"""wordcount: counts the lines, words, characters and bytes of a file, as `wc` does in a UTF-8 locale.

One thread reads stdin, so that a cancel is seen while a file is being counted; each request is answered on a thread
of its own. Only protocol messages go to stdout; errors go to stderr, which the host logs. `counting.py` counts.
"""

import json
import os
import sys
import threading
import traceback

from counting import CHUNK, count

PROTOCOL = 5
HEADERS = ["lines", "words", "characters", "bytes"]

TOOL = {
    "name": "count",
    "description": "Counts the lines, words, characters and bytes of the file at a path.",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
COMMAND = {"name": "wordcount", "hint": "count the words of a file", "family": "files"}
COMMAND["args"] = {"kind": "free", "hint": "<path>"}


class Cancelled(Exception):
    """Nobody waits for the answer any more."""


class Refused(Exception):
    """A JSON-RPC error: code and message."""


write_lock = threading.Lock()
cancels = {}  # callId of a running tool call -> Event


def send(message):
    line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
    with write_lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def count_tool(params):
    if params["name"] != "count":
        raise Refused(-32602, f"wordcount has no tool `{params['name']}`")
    call, given = params["callId"], params["input"]
    path = given.get("path") if isinstance(given, dict) else None
    if not isinstance(path, str):
        return {"output": failed("`path` must be a string")}
    cancelled = cancels[call]

    def progress(done):
        if cancelled.is_set():
            raise Cancelled
        if done >= CHUNK:
            send({"method": "tool/progress", "params": {"callId": call, "tail": f"{path}: {done} bytes read"}})

    try:
        counts = count(os.path.join(params["cwd"], path), progress)
    except Cancelled:
        return {"output": failed("cancelled")}
    except (OSError, ValueError) as error:
        return {"output": failed(f"cannot read {path}: {getattr(error, 'strerror', None) or error}")}
    text = f"{path}: " + ", ".join(f"{number} {header}" for number, header in zip(counts, HEADERS))
    return {"output": {"parts": [{"type": "text", "text": text}], "display": table(counts)}}


def failed(text):
    return {"parts": [{"type": "text", "text": text}], "isError": True}


def table(counts):
    return {"kind": "table", "headers": HEADERS, "rows": [[str(number) for number in counts]]}


def run_command(params):
    path = params["args"].strip()
    if not path:
        raise Refused(-32602, "which file? usage: /wordcount <path>")
    try:
        return {"outcome": {"kind": "view", "view": table(count(os.path.join(params["cwd"], path)))}}
    except (OSError, ValueError) as error:
        raise Refused(-32603, f"cannot read {path}: {getattr(error, 'strerror', None) or error}")


def complete_command(params):
    folder, start = os.path.split(params["partial"])
    try:
        entries = sorted(os.scandir(os.path.join(params["cwd"], folder)), key=lambda entry: entry.name)
    except OSError:
        return {"completions": []}
    fitting = [e for e in entries if e.name.startswith(start) and e.name.isprintable() and (start or e.name[0] != ".")]
    return {"completions": [{"value": os.path.join(folder, e.name) + "/" * e.is_dir()} for e in fitting]}


def initialize(params):
    if params["protocol"] != PROTOCOL:
        raise Refused(-32602, f"wordcount speaks protocol {PROTOCOL}, the host speaks protocol {params['protocol']}")
    return {"protocol": PROTOCOL, "name": "wordcount", "version": "1.0.0", "tools": [TOOL], "commands": [COMMAND]}


METHODS = {"initialize": initialize, "tool/call": count_tool}
METHODS.update({"command/run": run_command, "command/complete": complete_command})


def answer(request, params):
    try:
        if request["method"] not in METHODS:
            raise Refused(-32601, f"wordcount knows no method `{request['method']}`")
        outcome = {"result": METHODS[request["method"]](params)}
    except Refused as refused:
        outcome = {"error": {"code": refused.args[0], "message": refused.args[1]}}
    except KeyError as error:
        outcome = {"error": {"code": -32602, "message": f"the params lack {error}"}}
    except Exception as error:
        traceback.print_exc()
        outcome = {"error": {"code": -32603, "message": repr(error)}}
    cancels.pop(params.get("callId"), None)
    send({"id": request["id"], **outcome})


def receive(message):
    method, params = message.get("method"), message.get("params") or {}
    if method == "tool/cancel" and params.get("callId") in cancels:
        cancels[params["callId"]].set()
    elif method and "id" in message:
        if method == "tool/call":
            cancels[params.get("callId")] = threading.Event()
        threading.Thread(target=answer, args=(message, params), daemon=True).start()


def main():
    for line in sys.stdin.buffer:
        try:
            receive(json.loads(line))
        except Exception as error:
            print(f"skipped a line that is no message: {error!r}", file=sys.stderr)
    # The host is gone. What is nearly done may still answer.
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(timeout=1)


if __name__ == "__main__":
    main()
