"""Products of large matrices are the same numbers, by whichever library; under vmap as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sordino import fast
from sordino.fast import Operand, for_all, transforming, vmapping

FP32 = 2e-6  # of the largest number: products that went through bf16 are a thousand times further away


@pytest.fixture(params=["oneDNN", "MKL"])
def products_of_onednn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Tensor] | None:
    """As on a processor where oneDNN is taken, and even for small products: what it has made. None: as on another."""
    by_onednn, made = fast.onednn(), list[Tensor]()
    if request.param == "MKL":
        monkeypatch.setattr(fast, "_by_onednn", lambda: None)
        return None
    if by_onednn is None:
        pytest.skip("this torch was built without oneDNN")

    def kept(*given: Any) -> Tensor:
        made.append(by_onednn(*given))
        return made[-1]

    monkeypatch.setattr(fast, "_by_onednn", lambda: kept)
    monkeypatch.setattr(fast, "LARGE", 1)
    for name, rows in {"MOST": 12, "STEP": 4, "LEAST": 2}.items():
        monkeypatch.setattr(fast, name, rows)
    return made


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def far(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1))


@pytest.mark.parametrize("biased", [True, False])
def test_linear_is_the_layer(products_of_onednn: list[Tensor] | None, biased: bool) -> None:
    x, weight, bias = drawn(30, 50), drawn(20, 50, seed=1), drawn(20, seed=2) if biased else None
    wanted = x.double() @ weight.double().T + (bias.double() if bias is not None else 0)
    assert far(fast.linear(x, weight, bias), wanted) < FP32
    if products_of_onednn is not None:
        assert [len(one) for one in products_of_onednn] == [12, 12, 4, 2]  # 30 rows, in shapes of which there are few
    assert far(x.bfloat16() @ weight.bfloat16().T, x.double() @ weight.double().T) > 100 * FP32  # a control


def test_products_of_matrices_that_lie_across(products_of_onednn: list[Tensor] | None) -> None:
    c, x, y = drawn(41, 20), drawn(41, 50, seed=1), drawn(20, 50, seed=2)
    wanted, before = c.double().T @ x.double(), y.clone()
    assert far(fast.across(c, x), wanted) < FP32
    assert far(fast.added(y, c, x, 0.5), y.double() + 0.5 * wanted) < FP32
    assert torch.equal(y, before)
    assert fast.add_to(y, c, x, -2.0) is y
    assert far(y, before.double() - 2 * wanted) < FP32
    g, weight = drawn(31, 20, seed=3), drawn(20, 50, seed=4)
    assert far(fast.times(g, weight), g.double() @ weight.double()) < FP32
    assert products_of_onednn is None or len(products_of_onednn) == 3 * 4 + 4


def test_few_shapes_are_asked_of_a_library_that_remembers_each() -> None:
    asked = {rows.stop - rows.start for many in range(5000) for rows, block in fast._blocks(many) if block}
    assert len(asked) == 33
    for many in (0, 1, 31, 32, 100, 2047, 5000):
        rows = [row for one, _ in fast._blocks(many) for row in range(many)[one]]
        assert rows == list(range(many))


def each(do: Callable[..., Tensor], *operands: Tensor, own: tuple[bool, ...]) -> Tensor:
    """What vmap gives, one client after the other."""
    clients = next(len(one) for one, mine in zip(operands, own, strict=True) if mine)
    return torch.stack(
        [do(*(one[k] if mine else one for one, mine in zip(operands, own, strict=True))) for k in range(clients)]
    )


@pytest.mark.parametrize("own", [(True, False, False), (True, True, True), (False, True, False), (True, True, False)])
def test_a_stack_is_each_client_alone(products_of_onednn: list[Tensor] | None, own: tuple[bool, ...]) -> None:
    shapes = [(30, 50), (20, 50), (20,)]
    x, weight, bias = (
        drawn(*(4,) * mine, *shape, seed=i) for i, (shape, mine) in enumerate(zip(shapes, own, strict=True))
    )
    dims = tuple(0 if mine else None for mine in own)
    found = torch.vmap(fast.linear, in_dims=dims)(x, weight, bias)
    if products_of_onednn is not None and not own[1]:  # clients at the same weights are one product
        assert [len(one) for one in products_of_onednn] == 10 * [12]
    wanted = each(torch.nn.functional.linear, x.double(), weight.double(), bias.double(), own=own)
    assert far(found, wanted) < FP32
    inner = torch.vmap(fast.times, in_dims=dims[:2])(x, weight.mT)
    assert far(inner, each(torch.mm, x.double(), weight.mT.double(), own=own[:2])) < FP32


def test_a_stack_of_stacks_is_each_client_alone(products_of_onednn: list[Tensor] | None) -> None:
    x, weight = drawn(3, 4, 30, 50), drawn(3, 20, 50, seed=1)
    twice = torch.vmap(torch.vmap(fast.linear, in_dims=(0, None)))
    assert far(twice(x, weight), torch.einsum("abij,akj->abik", x.double(), weight.double())) < FP32


def test_what_autograd_follows_has_its_gradient(products_of_onednn: list[Tensor] | None) -> None:
    x, weight = drawn(30, 50), drawn(20, 50, seed=1).requires_grad_()
    fast.linear(x, weight).square().sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    plain = weight.detach().double().requires_grad_()
    torch.nn.functional.linear(x.double(), plain).square().sum().backward()  # type: ignore[no-untyped-call]
    assert plain.grad is not None
    assert far(weight.grad, plain.grad) < FP32
    inside = torch.vmap(torch.func.grad(lambda w, a: fast.linear(a, w).square().sum()), in_dims=(None, 0))
    assert far(inside(weight.detach(), x[None]), plain.grad[None]) < FP32


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_other_numbers_stay_what_they_are(products_of_onednn: list[Tensor] | None, kind: torch.dtype) -> None:
    x, weight = drawn(30, 50).to(kind), drawn(20, 50, seed=1).to(kind)
    assert torch.equal(fast.linear(x, weight), torch.nn.functional.linear(x, weight))
    assert torch.equal(fast.times(x, weight.t()), x @ weight.t())


def test_nothing_of_it_is_left_on_the_processor(products_of_onednn: list[Tensor] | None) -> None:
    """On an accelerator its own library multiplies."""
    with FakeTensorMode():
        x, weight = torch.empty(30, 50, device="cuda"), torch.empty(20, 50, device="cuda")
        assert fast.linear(x, weight).device.type == "cuda"
        assert fast.times(x, weight.t()).device.type == "cuda"


def test_a_rule_sees_all_clients_and_leaves_vmap_as_it_was() -> None:
    seen: list[tuple[int, tuple[int, ...], bool, bool]] = []

    def rule(clients: int, x: Operand, y: Operand) -> Tensor:
        seen.append((clients, tuple(x.whole.shape), x.each, y.each))
        assert not transforming()
        return x.of(clients) + y.of(clients)

    def inside(x: Tensor, y: Tensor) -> Tensor:
        assert vmapping()
        found = for_all(rule, x, y)
        assert found.shape == (2,)  # the clients are hidden again
        return found * x

    assert not vmapping()
    x, y = drawn(2, 3), drawn(2, seed=1)
    found = torch.vmap(inside, in_dims=(1, None))(x, y)
    assert torch.equal(found, (x.T + y) * x.T)
    assert seen == [(3, (3, 2), True, False)]

    def failing(clients: int, *operands: Operand) -> Tensor:
        raise ValueError("no")

    def told(x: Tensor) -> Tensor:
        with pytest.raises(ValueError, match="no"):
            for_all(failing, x)
        assert vmapping()  # also after an error
        return x

    torch.vmap(told)(x)
    torch.vmap(torch.func.grad(lambda one: (one * (not vmapping())).sum()))(x)


@pytest.mark.parametrize(
    ("words", "aside", "bf16"),
    [
        ("vendor_id : AuthenticAMD flags : avx2 avx512f avx512_bf16", True, True),
        ("vendor_id : AuthenticAMD flags : avx2", False, False),
        ("vendor_id : GenuineIntel flags : avx2 avx512f avx512_bf16 amx_bf16", False, True),
        ("vendor_id : GenuineIntel flags : avx2 avx512f avx512_bf16", False, False),
        ("", False, False),
    ],
)
def test_the_rule_asks_the_processor(words: str, aside: bool, bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_words", lambda: frozenset(words.split()))
    assert fast.leaves_vectors_aside() == aside
    assert fast.bf16_instructions() == bf16
