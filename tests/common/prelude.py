# What a plugin written in a test starts with: `hello()` shakes hands, `read()` and `send()` move one message.
import json, os, signal, subprocess, sys, time

TOOL = {"name": "t", "description": "A test tool", "inputSchema": {}}


def read():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def hello():
    result = {"protocol": 5, "name": "test", "version": "1", "tools": [TOOL]}
    send({"id": read()["id"], "result": result})


def text(request, words):
    send({"id": request["id"], "result": {"output": {"parts": [{"type": "text", "text": words}]}}})


