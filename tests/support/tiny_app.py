"""A Flower app of a few lines, whose server says what its clients answered."""

from pathlib import Path

PROJECT = """
[project]
name = "tiny"
version = "1.0.0"
[tool.flwr.app]
publisher = "tests"
fab-include = ["tiny_server.py", "tiny_client.py"]
[tool.flwr.app.components]
serverapp = "tiny_server:app"
clientapp = "tiny_client:app"
[tool.flwr.app.config]
out = ""
nodes = 1
fail = false
wait = 0.0
note.text = ""
method = ""
weights = ""
"""
SERVER = """
import json, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

def answer(reply):
    return {"error": reply.error.reason} if reply.has_error() else dict(reply.content["c"])

@app.main()
def main(grid, context):
    config = context.run_config
    if config["fail"]:
        raise RuntimeError("the server was asked to fail")
    while len(nodes := list(grid.get_node_ids())) < config["nodes"]:
        time.sleep(0.1)
    content = RecordDict({"c": ConfigRecord({"x": 20})})
    sent = [Message(content, node, "query.hello") for node in nodes]
    waiting = set(grid.push_messages(sent))
    replies = []
    while waiting:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            replies.append(answer(reply))
        time.sleep(0.05)
    print("all replies are here", flush=True)
    out = Path(config["out"])
    out.with_suffix(".tmp").write_text(
        json.dumps({"replies": replies, "note": config["note.text"]})
    )
    out.with_suffix(".tmp").rename(out)
    time.sleep(config["wait"])
"""
CLIENT = """
import os
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query("hello")
def hello(message, context):
    k = context.node_config["partition-id"]
    answer = {
        "k": k,
        "n": context.node_config["num-partitions"],
        "model": context.node_config.get("model", ""),
        "y": message.content["c"]["x"] + k,
        "seen": os.environ.get("TINY_VARIABLE", ""),
    }
    return Message(RecordDict({"c": ConfigRecord(answer)}), reply_to=message)
"""


def write(folder: Path) -> Path:
    """Write the app into a new folder; return it."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "tiny_server.py").write_text(SERVER)
    (folder / "tiny_client.py").write_text(CLIENT)
    return folder
