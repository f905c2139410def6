"""The health service of gRPC, as its own probes ask for it: two messages of protobuf, byte by byte."""

from __future__ import annotations

import grpc
import pytest

from sordino.sites.grpc_server import Rpc
from tests.helpers.lines import HOST, MOST, RUN, Listed, channel, credentials, papers

CHECK = "/grpc.health.v1.Health/Check"


def test_a_probe_with_a_certificate_is_answered_and_learns_nothing_of_the_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    trial = papers(tmp_path_factory.mktemp("trial") / "ca", ["a"])
    listed = Listed(lambda name: False)  # a probe is no site
    with Rpc(f"{HOST}:0", RUN, ["a"], MOST, listed, trial.server) as server:
        with channel(server.port, credentials(trial.ca, trial.another("probe"))) as probe:
            check = probe.unary_unary(CHECK)
            # field 1, a varint: SERVING = 1; the service "" is all of the server, "sordino.Post" its one service
            assert check(b"", timeout=10) == check(b"\x0a\x0csordino.Post", timeout=10) == b"\x08\x01"
            for asked in (b"\x0a\x04runs", b"garbage"):
                with pytest.raises(grpc.RpcError) as refusal:
                    check(asked, timeout=10)
                assert refusal.value.code() == grpc.StatusCode.NOT_FOUND
            with pytest.raises(grpc.RpcError) as refusal:
                next(probe.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=10))
            assert refusal.value.code() == grpc.StatusCode.UNIMPLEMENTED
        with channel(server.port, credentials(trial.ca, None)) as stranger, pytest.raises(grpc.RpcError):
            stranger.unary_unary(CHECK)(b"", timeout=10)
        assert server.peers() == frozenset()
