"""Leaving autocast."""

import torch

from vqlab.precision import without_autocast


def test_products_are_float32_within_autocast() -> None:
    x = torch.rand(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with without_autocast(x.device):
            assert (x @ x).dtype == torch.float32


def test_an_exported_graph_holds_no_autocast() -> None:
    class Square(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with without_autocast(x.device):
                return x @ x

    graph = torch.export.export(Square(), (torch.rand(4, 4),)).graph
    assert not [node for node in graph.nodes if "autocast" in node.name]
