# A plugin of a wire test, behind `prelude.py`: serves every request on a thread of its own, and notes every message in
# the file `seen`, one a line, before it does anything with it.
import threading

LOCK = threading.Lock()
WAITING = {}
# What the settings say to this process, once it was greeted.
CONFIG = []
SEEN = open("seen", "a")


class Refused(Exception):
    pass


def note(message):
    with LOCK:
        SEEN.write(json.dumps(message) + "\n")
        SEEN.flush()


def say(message):
    with LOCK:
        send(message)


def call(key, method, params):
    """Calls a service of another plugin or of the host; returns the whole response."""
    came = threading.Event()
    with LOCK:
        number = "own-%d" % len(WAITING)
        WAITING[number] = [came, None]
    params = {"key": key, "method": method, "params": params}
    say({"id": number, "method": "service/call", "params": params})
    came.wait()
    response = WAITING[number][1]
    return response.get("error") or response["result"]["result"]


def wait_for(name):
    """Waits until the test wrote this file, and says so in `seen`: by then it has read all that the test told it."""
    note({"method": "waits"})
    while not os.path.exists(name):
        time.sleep(0.005)


def words(text):
    return {"output": {"parts": [{"type": "text", "text": text}]}}


def answer(handlers, request):
    try:
        result = handlers[request["method"]](request["params"])
        say({"id": request["id"], "result": result})
    except Exception as refused:
        say({"id": request["id"], "error": {"code": -32000, "message": str(refused)}})


def serve(offers, **handlers):
    """Declares these offers; a handler of `hook/decide` is the argument `hook_decide`."""
    handlers = {name.replace("_", "/", 1): handler for name, handler in handlers.items()}
    result = {"protocol": 5, "name": "test", "version": "1", **offers}
    hello = read()
    note(hello)
    CONFIG.append(hello["params"]["config"])
    send({"id": hello["id"], "result": result})
    while True:
        message = read()
        note(message)
        if "method" not in message:
            waiting = WAITING[message["id"]]
            waiting[1] = message
            waiting[0].set()
        elif "id" in message:
            threading.Thread(target=answer, args=(handlers, message), daemon=True).start()
