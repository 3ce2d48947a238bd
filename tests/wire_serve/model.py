# A provider of a wire test, behind `harness.py`. It does what the lines of the newest message say, and otherwise says
# `done`: `@tool NAME JSON`, `@used TOKENS` and `@overflow TIMES`, which holds until it failed so often.
OVERFLOWS = {}


def lines(request):
    parts = request["messages"][-1]["parts"]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return [line.split(" ", 2) for text in texts for line in text.split("\n")]


def stream(params):
    def delta(event):
        say({"method": "provider/delta", "params": {"call": params["call"], "event": event}})

    used, reason = 1, "stop"
    delta({"type": "streamStart"})
    for number, line in enumerate(lines(params["request"])):
        if line[0] == "@used":
            used = int(line[1])
        elif line[0] == "@overflow":
            failed = OVERFLOWS.get(line[1], 0)
            OVERFLOWS[line[1]] = failed + 1
            if failed < int(line[1]):
                return {"error": {"kind": "contextOverflow", "message": "too large"}}
        elif line[0] == "@tool":
            reason = "toolCalls"
            delta({"type": "toolCall", "id": "call-%d-%d" % (number, time.time_ns()), "name": line[1], "input": line[2]})
    if reason == "stop":
        delta({"type": "textStart", "id": "b"})
        delta({"type": "textDelta", "id": "b", "delta": "done"})
        delta({"type": "textEnd", "id": "b"})
    usage = {"inputTokens": used, "outputTokens": 1}
    delta({"type": "finish", "usage": usage, "finishReason": {"unified": reason}})
    return {}


serve({"providers": [{"id": "py", "models": [{"id": "m"}]}]}, provider_stream=stream)
