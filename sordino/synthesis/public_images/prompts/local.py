"""Prompts from a language model on this machine, through the package transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from sordino import keys
from sordino.accounting.events import Json
from sordino.data.dataset import ImageNeeds
from sordino.errors import COUNT, POSITIVE, extra
from sordino.synthesis.public_images.model_files import Device, bad_model, device, identity, model_folder
from sordino.synthesis.public_images.prompts.chat import Reply, Turn, converse
from sordino.synthesis.public_images.prompts.texts import Prompts, kept

FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


@dataclass(frozen=True)
class Transformers:
    """Prompts written by a language model on this machine."""

    model: str  # a folder, or a hub id
    revision: str | None = None  # of a hub id
    per_call: Annotated[int, COUNT] = 50
    temperature: Annotated[float, POSITIVE] = 1.0
    max_new_tokens: Annotated[int, COUNT] = 4096
    device: Device = "auto"
    _loaded: Json = field(default_factory=dict, repr=False, compare=False)  # folder -> (tokenizer, model)

    def prompts(self, name: str, count: int, wanted: ImageNeeds) -> Prompts:
        with extra("diffusion", "these candidates", "missing-diffusion-extra"):
            import transformers
            from huggingface_hub import snapshot_download

        def fetch(here: bool) -> str:
            found: str = snapshot_download(
                self.model, revision=self.revision, allow_patterns=FILES, local_files_only=here
            )
            return found

        folder = model_folder(self.model, wanted.network, fetch)
        depends = {"backend": "transformers", "model": identity(self.model, folder), "class": name, "count": count}
        depends |= {"temperature": self.temperature, "tokens": self.max_new_tokens, "key": wanted.key}

        def ask() -> Prompts:
            if str(folder) not in self._loaded:
                self._loaded[str(folder)] = _load(transformers, str(folder), self.device)
            tokenizer, model = self._loaded[str(folder)]
            say = self._speaker(tokenizer, model, keys.fold(wanted.key, "transformers", name))
            return converse("transformers", name, count, self.per_call, say, wanted)

        return kept(wanted, depends, ask)

    def _speaker(self, tokenizer: Any, model: Any, key: keys.Key) -> Callable[[list[Turn]], Reply]:
        import torch

        def say(dialogue: list[Turn]) -> Reply:
            inputs = _tokens(tokenizer, dialogue).to(model.device)
            # generate() draws from the global generators, which are restored afterwards
            cuda = [model.device] if model.device.type == "cuda" else []
            with torch.random.fork_rng(devices=cuda), torch.inference_mode():
                torch.manual_seed(keys.signed(keys.word(keys.fold(key, len(dialogue)))))
                tokens = model.generate(
                    **inputs,
                    do_sample=True,
                    temperature=self.temperature,
                    max_new_tokens=self.max_new_tokens,
                    pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0,
                )
            return Reply(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))

        return say


def _load(transformers: Any, folder: str, asked: Device) -> tuple[Any, Any]:
    import torch

    where = device(asked)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, KeyError) as error:
        fix = "give the folder of a causal language model saved with safetensors"
        raise bad_model(folder, "a language model that transformers can read", error, fix) from None
    return tokenizer, model.to(where, torch.bfloat16 if where == "cuda" else torch.float32).eval()


def _tokens(tokenizer: Any, dialogue: list[Turn]) -> Any:
    if getattr(tokenizer, "chat_template", None):
        return tokenizer.apply_chat_template(
            dialogue, add_generation_prompt=True, tokenize=True, return_tensors="pt", return_dict=True
        )
    lines = [f"{turn['role']}: {turn['content']}" for turn in dialogue]  # a model without a chat template
    return tokenizer("\n".join([*lines, "assistant:"]), return_tensors="pt")
