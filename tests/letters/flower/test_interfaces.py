"""Every name, path and constant of Flower that letters rely on. With another version this file says what has moved."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: .ci/flower runs these tests in an environment of its own")

from sordino.letters.flower import interfaces as flower
from sordino.letters.flower.door import MOST, PATHS
from sordino.letters.flower.exchange import SILENCE
from sordino.letters.flower.node import HEARTBEAT
from sordino.letters.flower.parcels import PART, message_to, packed, reply_to, taken_apart, unpacked
from sordino.letters.flower.pinned import PINNED

pytestmark = pytest.mark.slow

# the whole Fleet API of this version: a path that is new would be one that nobody has looked at
SHUT = {"get-fab", "get-run", "register-node", "unregister-node"}
STATE: dict[str, list[str]] = {
    "create_node": ["owner_aid", "owner_name", "public_key", "heartbeat_interval"],
    "delete_node": ["owner_aid", "node_id"],
    "acknowledge_node_heartbeat": ["node_id", "heartbeat_interval"],
    "create_run": [
        "fab_id",
        "fab_version",
        "fab_hash",
        "override_config",
        "federation_id",
        "federation_config",
        "flwr_aid",
        "primary_task_type",
    ],
    "get_run_info": ["run_ids"],
    "claim_task": ["task_id"],
    "activate_task": ["task_id"],
    "acknowledge_task_heartbeat": ["task_id"],
    "start_session": ["run_id"],
    "store_message_and_object_tree": ["message", "object_tree", "session_id"],
    "store_object": ["run_id", "session_id", "object_id", "object_content"],
    "get_object": ["run_id", "object_id"],
    "get_message_ids_from_run_id": ["run_id"],
    "get_message_res": ["message_ids", "run_id"],
    "delete_messages": ["message_ins_ids"],
}
REQUESTS: dict[str, set[str]] = {
    "ActivateNodeRequest": {"public_key", "heartbeat_interval"},
    "DeactivateNodeRequest": {"node_id"},
    "SendNodeHeartbeatRequest": {"node", "heartbeat_interval"},
    "PullMessagesRequest": {"node"},
    "PushMessagesRequest": {"node", "messages_list", "message_object_trees", "clientapp_runtime_list"},
    "PullObjectRequest": {"node", "run_id", "object_id"},
    "PushObjectRequest": {"node", "run_id", "object_id", "object_content", "session_id"},
    "ConfirmMessageReceivedRequest": {"node", "run_id", "message_object_id"},
}
RESPONSES: dict[str, set[str]] = {
    "ActivateNodeResponse": {"node_id"},
    "PullMessagesResponse": {"messages_list", "message_object_trees"},
    "PushMessagesResponse": {"objects_to_push", "session_id"},
    "PullObjectResponse": {"object_available", "object_content"},
    "PushObjectResponse": {"stored"},
}
CONSTANTS: dict[str, Any] = {
    "SUPERLINK_NODE_ID": 1,
    "HEARTBEAT_DEFAULT_INTERVAL": 30,
    "NOOP_FEDERATION_ID": f"@{flower.NOOP_ACCOUNT_NAME}/default",
}


def parameters(of: Any) -> list[str]:
    return [name for name in inspect.signature(of).parameters if name != "self"]


def test_the_version_is_the_pinned_one() -> None:
    assert version("flwr") == PINNED


@pytest.mark.parametrize("name", sorted(CONSTANTS))
def test_constants(name: str) -> None:
    assert vars(flower)[name] == CONSTANTS[name]


@pytest.mark.parametrize("name", sorted(STATE))
def test_methods_of_the_state(name: str) -> None:
    found = parameters(inspect.getattr_static(flower.InMemoryLinkState, name))
    assert [one for one in found if one in STATE[name]] == STATE[name]
    assert found[: len(STATE[name])] == STATE[name] or name == "get_run_info"


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_fields_of_requests(name: str) -> None:
    assert {field.name for field in vars(flower)[name].DESCRIPTOR.fields} >= REQUESTS[name]


@pytest.mark.parametrize("name", sorted(RESPONSES))
def test_fields_of_responses(name: str) -> None:
    response = vars(flower.fleet_handlers)[name]
    assert {field.name for field in response.DESCRIPTOR.fields} >= RESPONSES[name]


def test_the_paths_are_all_of_the_fleet_api_but_four() -> None:
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    known = {path: kind for (_, path), kind in PROTOBUF_REQUEST_TYPES.items() if path.startswith("/v1/fleet/")}
    assert known.keys() - PATHS.keys() == {f"/v1/fleet/{name}" for name in SHUT}
    assert {path: opened.request for path, opened in PATHS.items()} == {path: known[path] for path in PATHS}


def test_the_client_asks_for_these_paths() -> None:
    class Stopped(Exception):
        pass

    class Watch:
        def intercept(self, context: Any, call_next: Any) -> Any:
            asked.append((context.request.url.path, bytes(context.request.content)))
            raise Stopped

    asked: list[tuple[str, bytes]] = []
    with flower.FleetHttpClient("https://nowhere.invalid", interceptors=[Watch()], verify=True) as client:
        for path, opened in PATHS.items():
            method = "".join(word.capitalize() for word in path.rpartition("/")[2].split("-"))
            before = len(asked)
            with pytest.raises(Stopped):
                vars(flower.FleetHttpClient)[method](client, opened.request())
            assert asked[before:] == [(path, b"")]


def test_handlers_take_what_they_are_given() -> None:
    own = flower.fleet_handlers
    for handle in (own.activate_node, own.deactivate_node, own.send_node_heartbeat, own.push_messages):
        assert parameters(handle) == ["request", "state"]
    assert parameters(own.push_object) == parameters(own.pull_object) == ["request", "state"]
    assert parameters(own.pull_messages) == parameters(own.confirm_message_received) == ["request", "state", "store"]


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART])
def test_a_parcel_comes_back_and_fits_through_the_door(size: int) -> None:
    letter = bytes(size)
    asked = message_to(5, 7, letter)
    for message in (asked, reply_to(asked, letter)):
        _, tree, objects = taken_apart(message)
        contents = {name: one.deflate() for name, one in objects.items()}
        assert max(map(len, contents.values())) < MOST - (1 << 19)
        assert unpacked(tree, contents, size) == letter
    assert len(packed(letter)) == -(-size // PART)


def test_a_message_is_of_the_run_it_says() -> None:
    """Flower takes it from a variable of the process where nobody says it."""
    metadata = message_to(5, 7, b"").metadata
    assert (metadata.run_id, metadata.dst_node_id, metadata.src_node_id) == (7, 5, flower.SUPERLINK_NODE_ID)
    answered = reply_to(message_to(5, 7, b""), b"").metadata
    assert (answered.run_id, answered.src_node_id, answered.dst_node_id) == (7, 5, flower.SUPERLINK_NODE_ID)


def test_heartbeats_come_often_enough() -> None:
    """Flower counts a node as away after twice its interval, and the door before."""
    assert 3 * HEARTBEAT < SILENCE < 2 * flower.HEARTBEAT_DEFAULT_INTERVAL


def test_the_server_is_built_with_what_it_knows() -> None:
    wanted = {
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "lifespan",
        "ws",
        "loop",
        "http",
        "log_config",
        "access_log",
        "server_header",
        "limit_concurrency",
        "timeout_keep_alive",
        "timeout_graceful_shutdown",
    }
    assert wanted <= set(parameters(flower.uvicorn.Config))
    assert issubclass(flower.httpx.HTTPStatusError, flower.httpx.HTTPError)
    assert issubclass(flower.httpx.TransportError, flower.httpx.HTTPError)
