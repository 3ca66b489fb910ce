"""Helpers shared by the tests of the quantizers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from vqlab.quantizers import Quantizer, build_codebook


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def state_bytes() -> Callable[[nn.Module], dict[str, bytes]]:
    """The exact content of a module's state dict."""

    def read(module: nn.Module) -> dict[str, bytes]:
        return {name: value.numpy().tobytes() for name, value in module.state_dict().items()}

    return read


@pytest.fixture
def make() -> Callable[..., Quantizer]:
    """make(kind, dim, sizes, codebook_dim=..., topology=..., normalize=..., **settings of every level)."""

    def build(
        kind: str,
        dim: int = 8,
        sizes: tuple[int, ...] = (16,),
        codebook_dim: int | None = None,
        topology: str = "residual",
        normalize: bool = True,
        **settings: object,
    ) -> Quantizer:
        levels = [build_codebook({"kind": kind, "codebook_size": k, **settings}, codebook_dim or dim) for k in sizes]
        return Quantizer(dim, levels, topology=topology, normalize=normalize)

    return build


@pytest.fixture
def fit() -> Callable[..., list[float]]:
    """fit(quantizer, inputs): one optimizer step per input on the quantizer's own loss; returns the losses."""

    def train(quantizer: Quantizer, inputs: list[Tensor], lr: float = 1e-2) -> list[float]:
        quantizer.train()
        parameters = [p for p in quantizer.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(parameters, lr=lr) if parameters else None
        losses = []
        for x in inputs:
            out = quantizer(x)
            if optimizer is not None:
                optimizer.zero_grad()
                loss = out.loss + (out.quantized - x.float()).square().mean()
                if loss.requires_grad:
                    loss.backward()
                optimizer.step()
            quantizer.after_step()
            losses.append(float(out.loss.detach()))
        return losses

    return train
