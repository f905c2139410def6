"""All that is used of Flower, in one place: with another version this file fails, and so does its test."""

from __future__ import annotations

from sordino.letters.flower.pinned import check_installed

check_installed()

# isort: split
import httpx as httpx
import uvicorn as uvicorn
from flwr.app import ConfigRecord as ConfigRecord
from flwr.app import Message as Message
from flwr.app import Metadata as Metadata
from flwr.app import RecordDict as RecordDict
from flwr.app.message import make_message as make_message
from flwr.app.message import remove_content_from_message as remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL as HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.constant import NOOP_ACCOUNT_NAME as NOOP_ACCOUNT_NAME
from flwr.common.constant import NOOP_FLWR_AID as NOOP_FLWR_AID
from flwr.common.constant import SUPERLINK_NODE_ID as SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto as message_from_proto
from flwr.common.serde import message_to_proto as message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest as ActivateNodeRequest
from flwr.proto.fleet_pb2 import DeactivateNodeRequest as DeactivateNodeRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest as PullMessagesRequest
from flwr.proto.fleet_pb2 import PushMessagesRequest as PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest as SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest as ConfirmMessageReceivedRequest
from flwr.proto.message_pb2 import ObjectTree as ObjectTree
from flwr.proto.message_pb2 import PullObjectRequest as PullObjectRequest
from flwr.proto.message_pb2 import PushObjectRequest as PushObjectRequest
from flwr.proto.node_pb2 import Node as Node
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState as InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID as NOOP_FEDERATION_ID
from flwr.supercore.constant import TaskType as TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects as get_all_nested_objects
from flwr.supercore.inflatable.inflatable_object import get_object_tree as get_object_tree
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree as iterate_object_tree
from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute as no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents as inflate_object_from_contents
from flwr.supercore.object_store import NoObjectInStoreError as NoObjectInStoreError
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore as InMemoryObjectStore
from flwr.superlink.federation import NoOpFederationManager as NoOpFederationManager
from flwr.superlink.servicer.fleet import fleet_handlers as fleet_handlers
from flwr.supernode.fleet_http_client import FleetHttpClient as FleetHttpClient
from google.protobuf.message import DecodeError as DecodeError
