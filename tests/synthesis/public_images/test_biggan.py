"""BigGAN-deep from a folder: a small network with random weights, saved as the published ones would be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import stats
from torch import nn

from sordino.data.dataset import ImageNeeds
from sordino.errors import ConfigError, DataError
from sordino.synthesis.public_images import SOURCES, model_files, pretrained
from sordino.synthesis.public_images.pretrained import noise

SMALL = {
    "z_dim": 8, "channel_width": 8, "num_classes": 1000, "attention_layer_position": 1, "n_stats": 51,
    "layers": [[True, 4, 2], [False, 2, 2], [True, 2, 1]], "output_dim": 16, "class_embed_dim": 8,
}  # fmt: skip


def network(seed: int = 0) -> pretrained.BigGanNetwork:
    """With random weights, moments and all."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = pretrained.BigGanNetwork(
            pretrained.NetworkConfig(**{k: v for k, v in SMALL.items() if k in pretrained.NetworkConfig._fields})
        )  # type: ignore[arg-type]
        with torch.no_grad():
            for name, value in [*made.named_buffers(), *made.named_parameters()]:
                if name.endswith(("running_means", "gamma")):
                    value.normal_(0, 0.3)
                if name.endswith("running_vars"):
                    value.uniform_(0.5, 1.5)
    return made.eval()


def normed(made: pretrained.BigGanNetwork) -> pretrained.BigGanNetwork:
    """Spectral norms as torch has them: weights, and the vectors of their largest singular value, beside each other."""
    for module in list(made.generator.modules()):
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.utils.spectral_norm(module, n_power_iterations=3)
    with torch.no_grad():  # an iteration: the vectors are those of these weights
        made.train()(torch.zeros(2, 8), torch.tensor([1, 2]), 0.4)
    return made.eval()


@pytest.fixture
def published() -> pretrained.BigGanNetwork:
    return normed(network())


@pytest.fixture
def folder(published: pretrained.BigGanNetwork, tmp_path: Path) -> Path:
    return saved(published, tmp_path / "biggan-small")


def saved(made: nn.Module, place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(SMALL))
    save_file({name: value.contiguous() for name, value in made.state_dict().items()}, place / "model.safetensors")
    return place


def test_reading_works_the_spectral_norms_into_the_weights(published: pretrained.BigGanNetwork, folder: Path) -> None:
    z, of = torch.randn(3, 8, generator=torch.Generator().manual_seed(2)), torch.tensor([3, 281, 999])
    with torch.no_grad():
        expected, found = published(z, of, 0.4), pretrained.load(folder)(z, of, 0.4)
        without = network()(z, of, 0.4)
    assert found.shape == (3, 3, 16, 16)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert (without - expected).abs().max() > 0.01  # the norms do something


def test_moments_lie_between_those_of_the_nearest_truncations() -> None:
    norm = pretrained.TruncatedNorm(2, pretrained.NetworkConfig(), conditional=False)
    norm.running_means = torch.arange(51.0)[:, None].repeat(1, 2)
    x = torch.zeros(1, 2, 1, 1)
    for truncation in (0.02, 0.25, 0.401, 1.0):
        assert norm(x, truncation, x).flatten()[0].item() == pytest.approx(
            -truncation * 50 / (1 + 1e-4) ** 0.5, rel=1e-5
        )


def test_a_class_of_the_network_answers_to_its_embedding() -> None:
    made = network()
    z = torch.randn(1, 8, generator=torch.Generator().manual_seed(2))
    one_hot = nn.functional.one_hot(torch.tensor([7]), 1000).float()
    with torch.no_grad():
        expected = made.generator(torch.cat([z, made.embeddings(one_hot)], 1), 0.4)
        torch.testing.assert_close(made(z, torch.tensor([7]), 0.4), expected)


def test_noise_is_a_normal_cut_at_two_deviations() -> None:
    """Kolmogorov-Smirnov at a false alarm of 1e-4, with a fixed key; the control is the normal that is not cut."""
    drawn = noise(5, 20_000, 0.4).numpy()
    assert abs(drawn).max() <= 0.8
    assert stats.kstest(drawn, stats.truncnorm(-2, 2, scale=0.4).cdf).pvalue > 1e-4
    assert stats.kstest(drawn, stats.norm(scale=0.4).cdf).pvalue < 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("no_sockets")
def test_candidates_come_once_and_then_from_the_cache(
    folder: Path, wanted: Callable[..., ImageNeeds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = torch.get_rng_state()
    want = wanted(classes=("cat", "pickup_truck"), cache=tmp_path / "cache")
    made = SOURCES["biggan"](str(folder), batch=5, device="cpu").build(want)
    assert made.x.shape == (12, 16, 16, 3)
    assert (made.manifest["made"], made.manifest["cached"]) == (12, 0)
    assert made.manifest["model"].startswith("biggan-small@")
    assert "GAN" in made.manifest["label"]
    assert made.manifest["duplicates"] == 0
    monkeypatch.setattr(pretrained, "load", lambda _: pytest.fail("the network was loaded"))
    again = SOURCES["biggan"](str(folder), batch=3, device="cpu").build(want)
    assert (again.manifest["made"], again.manifest["cached"]) == (0, 12)
    np.testing.assert_array_equal(made.x, again.x)
    assert (torch.get_rng_state() == state).all()  # nothing is drawn from the global generator


@pytest.mark.slow
def test_another_network_under_the_same_name_is_another_model(
    folder: Path, wanted: Callable[..., ImageNeeds], tmp_path: Path
) -> None:
    want = wanted(cache=tmp_path / "cache")
    SOURCES["biggan"](str(folder), device="cpu").build(want)
    save_file(
        {name: value.contiguous() for name, value in network(1).state_dict().items()}, folder / "model.safetensors"
    )
    assert SOURCES["biggan"](str(folder), device="cpu").build(want).manifest["made"] == 12


def test_a_model_is_known_by_what_it_holds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for whole in (model_files.WHOLE, 0):  # small files by their content, large ones by size and time
        monkeypatch.setattr(model_files, "WHOLE", whole)
        before = model_files.identity("m", folder)
        (folder / ".cache").mkdir(exist_ok=True)
        (folder / ".cache" / "fetched").write_text(str(whole))
        assert model_files.identity("m", folder) == before
        (folder / "config.json").write_text(json.dumps(SMALL | {"note": whole}))
        assert model_files.identity("m", folder) != before
    assert model_files.identity("/models/n", folder).startswith("n@")


def test_a_class_that_imagenet_has_not_is_refused(folder: Path, wanted: Callable[..., ImageNeeds]) -> None:
    with pytest.raises(ConfigError, match="deer") as refused:
        SOURCES["biggan"](str(folder)).build(wanted(classes=("cat", "deer")))
    assert refused.value.code == "no-imagenet-id"
    assert "drop the class" in refused.value.fix


def test_ids_of_your_own(folder: Path, wanted: Callable[..., ImageNeeds], tmp_path: Path) -> None:
    own = tmp_path / "ids.json"
    own.write_text('{"deer": ["350-351", 353]}')
    made = SOURCES["biggan"](str(folder), ids=str(own), device="cpu").build(wanted(classes=("deer",)))
    assert made.manifest["counts"] == {"deer": 6}
    own.write_text('{"deer": [1000]}')
    with pytest.raises(ConfigError, match="1000") as unknown:
        SOURCES["biggan"](str(folder), ids=str(own), device="cpu").build(wanted(classes=("deer",)))
    assert unknown.value.code == "bad-imagenet-ids"
    for wrong in ("[]", '{"deer": "many"}', '{"deer": ["x-y"]}', "{"):
        own.write_text(wrong)
        with pytest.raises((ConfigError, DataError)) as refused:
            SOURCES["biggan"](str(folder), ids=str(own)).build(wanted(classes=("deer",)))
        assert refused.value.code == "bad-imagenet-ids"


def pickled(place: Path) -> None:
    (place / "model.safetensors").rename(place / "pytorch_model.bin")


def with_code(place: Path) -> None:
    (place / "modelling.py").write_text("print('hello')")


def damaged(place: Path) -> None:
    (place / "model.safetensors").write_bytes((place / "model.safetensors").read_bytes()[:-9])


def without_config(place: Path) -> None:
    (place / "config.json").unlink()


def of_another_size(place: Path) -> None:
    (place / "config.json").write_text(json.dumps(SMALL | {"z_dim": 4}))


def with_a_strange_config(place: Path) -> None:
    (place / "config.json").write_text(json.dumps(SMALL | {"layers": [1, 2]}))


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (pickled, "pickled-weights"),
        (with_code, "code-in-model"),
        (damaged, "bad-model"),
        (without_config, "bad-model"),
        (of_another_size, "bad-model"),
        (with_a_strange_config, "bad-model"),
    ],
)
def test_a_folder_that_holds_something_else_is_refused(
    broken: Callable[[Path], None], code: str, folder: Path, wanted: Callable[..., ImageNeeds], tmp_path: Path
) -> None:
    broken(folder)
    with pytest.raises(ConfigError, match=str(folder)) as refused:
        SOURCES["biggan"](str(folder)).build(wanted(cache=tmp_path / "cache"))
    assert refused.value.code == code
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("path", ["/not/here", "owner/name"])
def test_a_folder_that_is_not_there_is_refused(path: str, wanted: Callable[..., ImageNeeds]) -> None:
    with pytest.raises(ConfigError) as refused:
        SOURCES["biggan"](path).build(wanted(network=True))
    assert refused.value.code == "no-model"


def test_every_id_of_the_package_is_an_imagenet_class(folder: Path, wanted: Callable[..., ImageNeeds]) -> None:
    from sordino.synthesis.public_images import pretrained

    known: dict[str, Any] = pretrained._ids(None)
    assert all(0 <= of < 1000 for ids in known.values() for of in ids)
    assert known["cat"] == [281, 282, 283, 284, 285]
    assert known["dog"] == list(range(151, 269))
    assert known["airplane"] == [404, 895]
