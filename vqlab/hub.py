"""Tokenizers on the Hugging Face hub: from a name to a local folder, and from a folder to a page."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from vqlab.errors import VqlabError
from vqlab.storage import CONFIG_NAME, WEIGHTS_NAME

CARD_NAME, FIGURES_NAME = "README.md", "evaluation.json"
#: NAME/NAME, as the hub allows it.
_REPO_ID = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}")
#: What the hub reads from the head of a card: https://huggingface.co/docs/hub/model-cards
_METADATA = "---\nlibrary_name: vqlab\ntags:\n- image-tokenizer\n- vector-quantization\n---\n\n"


def local_folder(name: str | Path, revision: str | None = None) -> Path:
    """The folder itself if there is one of that name, else that of a copy of the hub's files in huggingface_hub's cache.

    Only weights and configuration are fetched. Raises VqlabError where there is neither, or the hub cannot be reached.
    """
    folder = Path(name).expanduser()
    if folder.exists() or not _REPO_ID.fullmatch(str(name)):
        return folder
    import huggingface_hub  # here: a second that most uses do not need

    try:
        return Path(huggingface_hub.snapshot_download(str(name), revision=revision, allow_patterns=[CONFIG_NAME, WEIGHTS_NAME]))
    except Exception as error:  # the library lets errors of its HTTP client through
        raise VqlabError(f"there is no folder {name}, and the Hugging Face hub gave no tokenizer of that name: {_reason(error)}") from error


def push_folder(
    folder: Path, repo_id: str, *, private: bool | None = None, token: str | None = None, message: str = "Upload tokenizer"
) -> str:
    """Upload a tokenizer's weights, configuration, card and figures as `repo_id`, which is made if needed; the address of the page.

    On the page the card speaks of `repo_id` instead of the folder. Raises VqlabError for a name that is none, a folder without a tokenizer,
    and where the hub cannot be reached or refuses.
    """
    if not _REPO_ID.fullmatch(repo_id):
        raise VqlabError(f"a name on the hub looks like USER/NAME, got {repo_id!r}")
    for file in (WEIGHTS_NAME, CONFIG_NAME):
        if not (folder / file).is_file():
            raise VqlabError(f"{folder} is not a tokenizer: it has no {file}")
    import huggingface_hub

    with tempfile.TemporaryDirectory() as name:
        page = Path(name)
        for file in (WEIGHTS_NAME, CONFIG_NAME, FIGURES_NAME):
            if (folder / file).is_file():
                shutil.copyfile(folder / file, page / file)
        card = (folder / CARD_NAME).read_text(encoding="utf-8") if (folder / CARD_NAME).is_file() else loading_snippet(repo_id)
        card = card.replace(f"checkpoints/{folder.name}", repo_id)
        (page / CARD_NAME).write_text(card if card.startswith("---\n") else _METADATA + card, encoding="utf-8")
        try:
            api = huggingface_hub.HfApi(token=token)
            address = api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(repo_id=repo_id, folder_path=page, commit_message=message)
        except Exception as error:
            raise VqlabError(f"cannot upload {folder} to the Hugging Face hub as {repo_id}: {_reason(error)}") from error
    return str(address)


def loading_snippet(name: str) -> str:
    """The part of a card that says how to load a tokenizer."""
    return f'```python\nimport vqlab\n\ntokenizer = vqlab.Tokenizer.from_pretrained("{name}")\n```\n'


def _reason(error: BaseException) -> str:
    """One line: the innermost cause says most, a server's answer is many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
