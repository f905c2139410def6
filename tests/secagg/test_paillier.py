"""Paillier: what is sealed opens again, sums are sums, another implementation agrees, and everything foreign is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import (
    HeadroomExceeded,
    IntegrityError,
    KeyMismatch,
    LayoutMismatch,
    MalformedCiphertext,
    RoundMismatch,
    SecureError,
)
from sordino.privacy.uplink.fixed_point import Layout
from sordino.secagg import big_integers, paillier
from sordino.secagg.paillier import PaillierPublic, PaillierSecret, read_public
from sordino.secagg.sealed import Sealed, unpack
from tests.secagg.paillier_keys import real, tiny

pytest.importorskip("gmpy2")


LAYOUT = Layout()


TOP = LAYOUT.offset - 1


BLINDINGS = ("djn", "secret djn")


def blinding(secret: PaillierSecret, name: str) -> Callable[[int], list[int]]:
    return {"djn": secret.public.djn, "secret djn": secret.djn}[name]


def random_values(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-TOP, TOP + 1, size)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLINDINGS)
def test_what_is_sealed_opens_again(name: str) -> None:
    secret = real(2048)
    n = int(secret.public.n)
    plain = [0, 1, n - 1, n // 3]
    ciphertexts = secret.public.seal(plain, blinding(secret, name))
    assert secret.unseal(ciphertexts) == plain


@settings(max_examples=25)
@given(st.data())
def test_a_product_of_ciphertexts_is_the_sum(data: st.DataObject) -> None:
    secret = tiny()
    n = int(secret.public.n)
    plain = data.draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=2))
    name = data.draw(st.sampled_from(BLINDINGS))
    first, second = secret.public.seal(plain, blinding(secret, name))
    assert secret.unseal([first * second % secret.public.square]) == [sum(plain) % n]


@pytest.mark.parametrize("name", BLINDINGS)
def test_two_encryptions_of_a_number_differ(name: str) -> None:
    secret = tiny()
    many = secret.public.seal([5] * 50, blinding(secret, name))
    assert len(set(many)) == 50
    n = secret.public.n
    assert all((number - 1) % n != 0 for number in many)
    twin = secret.public.seal([5] * 2, lambda count: [1] * count)  # without blinding
    assert twin[0] == twin[1]
    assert [(number - 1) // n for number in twin] == [5, 5], "and everybody reads it"


@pytest.mark.parametrize("name", BLINDINGS)
def test_blindings_are_residues_that_open_as_zero(name: str) -> None:
    """As powers of h they have the Jacobi symbol 1."""
    secret = tiny()
    blinds = blinding(secret, name)(40)
    assert secret.unseal(blinds) == [0] * 40
    symbols = {big_integers.gmp().jacobi(blind, secret.public.n) for blind in blinds}
    assert symbols == {1}


def test_powers_of_h_itself_would_not_do() -> None:
    """The broken twin: h without its n-th power is no residue, and does not open as zero."""
    secret = tiny()
    assert secret.unseal([secret.public.hs]) == [0]
    assert secret.unseal([-4 % secret.public.n]) != [0]


def test_short_exponents_are_random_and_half_as_long() -> None:
    """Chi-square of the bytes with 255 degrees of freedom lies in [150, 400] but for 1e-8."""
    exponents = big_integers.short_exponents(3072, 200)
    assert exponents.shape == (192, 200)
    counts = np.bincount(exponents.reshape(-1), minlength=256)
    mean = exponents.size / 256
    assert 150 < ((counts - mean) ** 2 / mean).sum() < 400
    assert len({tuple(column) for column in exponents.T}) == 200


def test_the_short_way_is_the_same_power_with_and_without_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tiny()
    fixed = big_integers.short_exponents(512, 4)
    monkeypatch.setattr(paillier, "short_exponents", lambda bits, count: fixed)
    alphas = [int.from_bytes(bytes(column), "little") for column in fixed.T]
    hs, square = int(secret.public.hs), int(secret.public.square)
    expected = [pow(hs, alpha, square) for alpha in alphas]
    assert secret.public.djn(4) == secret.djn(4) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", BLINDINGS)
def test_phe_reads_ours_and_we_read_theirs(name: str) -> None:
    phe = pytest.importorskip("phe")
    secret = real(2048)
    n = int(secret.public.n)
    theirs = phe.PaillierPublicKey(n)
    opener = phe.PaillierPrivateKey(theirs, int(secret.p), int(secret.q))
    plain = [0, 1, n - 1, 123456789**20]
    ours = secret.public.seal(plain, blinding(secret, name))
    assert [opener.raw_decrypt(int(number)) for number in ours] == plain
    foreign = [theirs.raw_encrypt(number) for number in plain]
    assert secret.unseal(foreign) == plain
    r = 987654321
    assert secret.public.seal([7], lambda count: [pow(r, n, n * n)]) == [theirs.raw_encrypt(7, r_value=r)]
    assert opener.raw_decrypt(int(ours[3] * foreign[1] % (n * n))) == plain[3] + 1


# messages
@pytest.mark.slow
@pytest.mark.parametrize(("bits", "slots", "body"), [(2048, 63, 825_856), (3072, 95, 817_152)])
def test_a_hundred_thousand_values_take_as_many_bytes_as_computed(bits: int, slots: int, body: int) -> None:
    secret = real(bits)
    sealed = secret.public.encrypt(random_values(100_000), 1, LAYOUT, secret.djn)
    assert sealed.header.slots == slots
    assert len(sealed.body) == body == -(-100_000 // (slots - 1)) * bits // 4
    assert len(sealed.body) / 400_000 < 2.1


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 40), st.integers(1, 5), st.sampled_from([(24, 8), (16, 16), (17, 6), (32, 32)]), st.integers(0, 99)
)
def test_the_opened_sum_is_the_sum(size: int, clients: int, shape: tuple[int, int], seed: int) -> None:
    secret, layout = tiny(), Layout(*shape)
    count = min(clients, layout.most)
    rows = np.random.default_rng(seed).integers(1 - layout.offset, layout.offset, (count, size))
    expected = secret.public.header(4, size, layout)
    received = [unpack(secret.public.encrypt(row, 4, layout).pack(), expected) for row in rows]
    total = secret.public.add(received)
    assert total.header == replace(expected, count=count)
    assert secret.open(total).tolist() == rows.sum(axis=0).tolist()
    one_by_one = received[0]
    for message in received[1:]:
        one_by_one = secret.public.add([one_by_one, message])
    assert one_by_one == total


@pytest.mark.parametrize("value", [TOP, -TOP])
def test_as_many_as_fit_are_exact_and_one_more_is_refused(value: int) -> None:
    secret = tiny()
    one = secret.public.encrypt(np.full(20, value), 1, LAYOUT)
    total = secret.public.add([one] * 256)
    assert secret.open(total).tolist() == [256 * value] * 20
    with pytest.raises(HeadroomExceeded, match="257 uploads are too many: with 24 bits and 8 headroom bits"):
        secret.public.add([total, replace(one, body=b"refused before it is looked at")])
    with pytest.raises(HeadroomExceeded):
        secret.open(replace(total, header=replace(total.header, count=257)))


def sealed(secret: PaillierSecret, size: int = 40, round: int = 1, layout: Layout = LAYOUT) -> Sealed:
    return secret.public.encrypt(random_values(size), round, layout)


def test_messages_that_do_not_belong_together_are_not_added() -> None:
    mine = sealed(tiny())
    others: list[tuple[Sealed, type[SecureError]]] = [
        (sealed(tiny(1)), KeyMismatch),
        (sealed(tiny(), round=2), RoundMismatch),
        (sealed(tiny(), size=41), LayoutMismatch),
        (sealed(tiny(), layout=Layout(26, 6)), LayoutMismatch),
    ]
    for other, error in others:
        for order in ([mine, other], [other, mine]):
            with pytest.raises(error):
                tiny().public.add(order)


def test_a_message_of_another_key_is_not_opened_and_names_both() -> None:
    with pytest.raises(KeyMismatch) as refused:
        tiny(1).open(sealed(tiny()))
    assert tiny().public.id.hex() in str(refused.value)
    assert tiny(1).public.id.hex() in str(refused.value)
    with pytest.raises(KeyMismatch):
        tiny(1).public.add([sealed(tiny())] * 2)


def test_a_header_that_lies_about_the_key_is_found_out_by_the_guard() -> None:
    """Random plaintexts pass with a chance below 2^-32. Where the other modulus is smaller, a number may be beyond it
    already.
    """
    for owner, opener, errors in ((0, 1, IntegrityError), (1, 0, (IntegrityError, MalformedCiphertext))):
        message = sealed(tiny(owner))
        lying = replace(message, header=replace(message.header, key=tiny(opener).public.id))
        with pytest.raises(errors):
            tiny(opener).open(lying)


def test_a_header_that_lies_about_the_count_is_found_out_by_the_guard() -> None:
    secret, values = tiny(), random_values(40)
    total = secret.public.add([secret.public.encrypt(values, 1, LAYOUT)] * 3)
    lying = replace(total, header=replace(total.header, count=2))
    with pytest.raises(IntegrityError) as refused:
        secret.open(lying)
    assert refused.value.code == "guard-mismatch"
    first = secret.unseal(secret.public.read(lying))[0]  # the broken twin decodes without asking the guard
    assert (first >> 32 & 0xFFFFFFFF) - 2 * LAYOUT.offset == 3 * values[0] + LAYOUT.offset, (
        "a wrong sum, and no word of it"
    )


def test_a_replayed_ciphertext_is_found_out_by_the_guard() -> None:
    secret = tiny()
    message = sealed(secret)
    length = secret.public.bits // 4
    square = secret.public.square
    doubled = int.from_bytes(message.body[:length], "big") ** 2 % int(square)
    with pytest.raises(IntegrityError):
        secret.open(replace(message, body=doubled.to_bytes(length, "big") + message.body[length:]))


def test_numbers_that_are_no_ciphertexts_are_refused() -> None:
    secret = tiny()
    public = secret.public
    good = sealed(secret)
    length, rest = public.bits // 4, len(good.body) - public.bits // 4

    def ending_in(number: int) -> Sealed:
        return replace(good, body=good.body[:rest] + int(number).to_bytes(length, "big"))

    cases = [
        ("ciphertext-length", replace(good, body=good.body[:-1])),
        ("ciphertext-length", replace(good, body=good.body + b"\0")),
        ("ciphertext-length", replace(good, body=good.body[:rest])),
        ("ciphertext-length", replace(good, body=b"")),
        ("ciphertext-out-of-range", ending_in(0)),
        ("ciphertext-out-of-range", ending_in(public.square)),
        ("ciphertext-out-of-range", ending_in(2 ** (8 * length) - 1)),
        ("ciphertext-not-coprime", ending_in(secret.p)),
        ("ciphertext-not-coprime", ending_in(secret.q * 12345)),
        ("ciphertext-not-coprime", ending_in(public.n)),
    ]
    for code, bad in cases:
        for attempt in (lambda bad=bad: secret.open(bad), lambda bad=bad: public.add([good, bad])):
            with pytest.raises(MalformedCiphertext) as refused:
                attempt()
            assert refused.value.code == code
    with pytest.raises(MalformedCiphertext, match="message 1"):
        public.add([good, cases[-1][1], good])
    assert secret.open(ending_in(int.from_bytes(good.body[rest:], "big"))).tolist() == random_values(40).tolist()


@pytest.mark.slow
def test_a_public_key_alone_makes_what_the_secret_opens() -> None:
    secret = real(2048)
    public: PaillierPublic = read_public(secret.public.pack(), testing=True)
    values = random_values(130)
    total = public.add([public.encrypt(values, 1, LAYOUT), public.encrypt(-values, 1, LAYOUT)])
    assert secret.open(total).tolist() == [0] * 130
