"""The packages diffusers and transformers, with tiny models of random weights saved on disk: the code that loads real
ones really runs.
"""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino.data.dataset import ImageNeeds
from sordino.errors import ConfigError, DataError
from sordino.synthesis.public_images import PROMPTS, SOURCES
from sordino.synthesis.public_images.prompts import local
from sordino.synthesis.public_images.prompts.chat import _request

pytestmark = pytest.mark.slow

SAID = "1. a red cat\n2. a cat asleep\n3. two cats\n"


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """Imported when a test runs: collecting them for the fast tier would cost it seconds."""
    pytest.importorskip("diffusers")
    pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Stable Diffusion of a few thousand weights, for 16x16 images."""
    import diffusers
    import transformers

    place = tmp_path_factory.mktemp("models") / "tiny-diffusion"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        unet = diffusers.UNet2DConditionModel(
            sample_size=8, in_channels=4, out_channels=4, block_out_channels=(8, 16), norm_num_groups=4,
            layers_per_block=1, cross_attention_dim=16, attention_head_dim=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip
        vae = diffusers.AutoencoderKL(
            block_out_channels=(8, 8), norm_num_groups=4, layers_per_block=1, latent_channels=4, sample_size=16,
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        )  # fmt: skip
        letters = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
        words = {word: at for at, word in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
        tokenizer = transformers.CLIPTokenizer(vocab=words, merges=[], model_max_length=32)
        text = transformers.CLIPTextModel(
            transformers.CLIPTextConfig(
                hidden_size=16, intermediate_size=16, num_attention_heads=2, num_hidden_layers=1, vocab_size=len(words),
                max_position_embeddings=32, bos_token_id=len(words) - 2, eos_token_id=len(words) - 1,
            )
        )  # fmt: skip
    diffusers.StableDiffusionPipeline(
        unet=unet, vae=vae, text_encoder=text, tokenizer=tokenizer, safety_checker=None, feature_extractor=None,
        scheduler=diffusers.DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1), requires_safety_checker=False,
    ).save_pretrained(place, safe_serialization=True)  # fmt: skip
    return place


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model that has learned a single answer by heart, letter by letter."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    place = tmp_path_factory.mktemp("models") / "tiny-chat"
    letters = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(letters | {"<end>": len(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": _request("cat", 3)}], add_generation_prompt=True, tokenize=False
    )
    before = len(tokenizer(asked)["input_ids"])
    whole = torch.tensor([[*tokenizer(asked + SAID)["input_ids"], len(letters)]])
    labels = torch.where(torch.arange(whole.shape[1]) < before, -100, whole[0])[None]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                n_embd=32, n_layer=2, n_head=2, n_positions=2048, vocab_size=len(letters) + 1, resid_pdrop=0.0,
                embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=len(letters), eos_token_id=len(letters),
            )
        )  # fmt: skip
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(120):
            optimiser.zero_grad()
            model(input_ids=whole, labels=labels).loss.backward()
            optimiser.step()
    model.save_pretrained(place, safe_serialization=True)
    tokenizer.save_pretrained(place)
    return place


def source(pipeline: Path, **settings: Any) -> Any:
    plain = {"steps": 2, "size": 16, "batch": 4, "device": "cpu"}
    return SOURCES["diffusers"](str(pipeline), **plain | settings)


@pytest.mark.usefixtures("no_sockets")
def test_a_pipeline_on_disk_draws_each_image_from_its_own_seed(
    pipeline: Path, wanted: Callable[..., ImageNeeds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = torch.get_rng_state()
    want = wanted(per_class=3, cache=tmp_path)
    made = source(pipeline).build(want)
    assert made.x.shape == (6, 16, 16, 3)
    assert made.manifest["label"] == ""
    assert made.manifest["model"].startswith("tiny-diffusion@")
    assert made.manifest["prompts"] == {"template": 6}
    assert (made.manifest["made"], made.manifest["duplicates"], made.manifest["blanks"]) == (6, 0, 0)
    alone = source(pipeline, batch=1).build(wanted(per_class=3))  # a batch shares nothing but time
    assert abs(made.x.astype(int) - alone.x).max() <= 1
    assert (torch.get_rng_state() == state).all()

    monkeypatch.setattr("diffusers.AutoPipelineForText2Image", None)  # nothing is loaded for what is there
    again = source(pipeline).build(want)
    assert (again.manifest["made"], again.manifest["cached"]) == (0, 6)
    np.testing.assert_array_equal(made.x, again.x)


def test_settings_and_words_reach_the_pipeline(pipeline: Path, wanted: Callable[..., ImageNeeds]) -> None:
    plain = source(pipeline).build(wanted(per_class=1))
    for changed in ({"steps": 3}, {"guidance": 1.0}, {"fast": True}, {"prompts": {"name": "label_only"}}):
        other = source(pipeline, **changed).build(wanted(per_class=1))
        assert (other.x != plain.x).any(), changed
    assert source(pipeline, steps=None).build(wanted(classes=("cat",), per_class=1)).manifest["settings"]["steps"] == 50
    fast = source(pipeline, steps=None, fast=True).build(wanted(classes=("cat",), per_class=1))
    assert fast.manifest["settings"]["steps"] == 25


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize(("model", "code"), [("/not/here", "no-model"), ("owner/not-on-this-machine", "no-model")])
def test_a_model_that_is_not_there_is_not_fetched(model: str, code: str, wanted: Callable[..., ImageNeeds]) -> None:
    with pytest.raises(ConfigError) as pictures:
        SOURCES["diffusers"](model).build(wanted())
    with pytest.raises(ConfigError) as words:
        PROMPTS["transformers"](model).prompts("cat", 3, wanted())
    assert pictures.value.code == words.value.code == code


@pytest.mark.usefixtures("no_sockets")
def test_what_the_hub_gave_before_is_found_without_it(
    pipeline: Path, speaker: Path, wanted: Callable[..., ImageNeeds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, place in (("pictures", pipeline), ("words", speaker)):
        kept = tmp_path / f"models--me--{name}"
        shutil.copytree(place, kept / "snapshots" / ("a" * 40))
        (kept / "refs").mkdir()
        (kept / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    made = SOURCES["diffusers"](
        "me/pictures", steps=1, size=16, device="cpu",
        prompts={"name": "transformers", "model": "me/words", "max_new_tokens": 60, "device": "cpu"},
    ).build(wanted(classes=("cat",), per_class=3))  # fmt: skip
    assert made.manifest["model"].startswith("pictures@")
    assert made.manifest["prompts"] == {"transformers": 3}


def test_a_folder_that_holds_something_else(
    pipeline: Path, speaker: Path, wanted: Callable[..., ImageNeeds], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", speaker):
        with pytest.raises(ConfigError) as pictures:
            source(place).build(wanted(cache=tmp_path / "cache"))
        assert pictures.value.code == "bad-model"
    for place in (tmp_path / "empty", pipeline):
        with pytest.raises(ConfigError) as words:
            PROMPTS["transformers"](str(place)).prompts("cat", 3, wanted(cache=tmp_path / "cache"))
        assert words.value.code == "bad-model"
    (tmp_path / "empty" / "pytorch_model.bin").write_bytes(b"")
    for build in (
        source(tmp_path / "empty").build,
        lambda w: PROMPTS["transformers"](str(tmp_path / "empty")).prompts("cat", 3, w),
    ):
        with pytest.raises(ConfigError) as pickled:
            build(wanted())
        assert pickled.value.code == "pickled-weights"
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("no_sockets")
def test_a_language_model_on_disk_writes_prompts(
    speaker: Path, wanted: Callable[..., ImageNeeds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = torch.get_rng_state()
    model = PROMPTS["transformers"](str(speaker), max_new_tokens=60, device="cpu")
    made = model.prompts("cat", 3, wanted(cache=tmp_path))
    assert made.texts == ("a red cat", "a cat asleep", "two cats")
    assert made.by == {"transformers": 3}
    assert (torch.get_rng_state() == state).all()
    monkeypatch.setattr(local, "_load", lambda *_: pytest.fail("the model was loaded"))
    fresh = PROMPTS["transformers"](str(speaker), max_new_tokens=60, device="cpu")
    assert fresh.prompts("cat", 3, wanted(cache=tmp_path)) == made._replace(calls=0)


def test_a_language_model_that_was_never_taught_to_chat(
    speaker: Path, wanted: Callable[..., ImageNeeds], tmp_path: Path
) -> None:
    """Without a template it is asked in plain words, and this one answers nonsense, the same for the same key."""
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in speaker.iterdir():
        if file.suffix != ".jinja":
            (plain / file.name).write_bytes(file.read_bytes())
    told = json.loads((plain / "tokenizer_config.json").read_text())
    (plain / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in told.items() if k != "chat_template"}))
    said = []
    for key in (1, 1, 2):
        with pytest.raises(DataError) as refused:
            PROMPTS["transformers"](str(plain), max_new_tokens=8, temperature=50.0, device="cpu").prompts(
                "cat", 3, wanted(key=key)
            )
        assert refused.value.code in ("chat-nonsense", "chat-refused")
        said.append(str(refused.value))
    assert said[0] == said[1] != said[2]
