"""The batch loader inside Lightning's fit loop: whole epochs, and a resumed run that sees what was left."""

from pathlib import Path

import lightning as L
import pytest
import torch

from vqlab.data import BatchLoader, ImageBatch, ImageSplit


class Recorder(L.LightningModule):
    """Learns nothing; writes down which images it is given, and saves in the middle of the second epoch."""

    def __init__(self, checkpoint: Path | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.checkpoint = checkpoint
        self.seen: list[tuple[int, list[int]]] = []
        self.validated: list[int] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: ImageBatch, index: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, batch.labels.tolist()))
        return self.weight * batch.images.float().mean()

    def on_train_batch_end(self, *args: object) -> None:
        if self.checkpoint is not None and self.global_step == 6:
            self.trainer.save_checkpoint(self.checkpoint)

    def validation_step(self, batch: ImageBatch, index: int) -> None:
        if not self.trainer.sanity_checking:
            self.validated += batch.labels.tolist()


def fit(module: Recorder, path: Path, resume: Path | None = None) -> None:
    split = ImageSplit(torch.zeros(14, 3, 8, 8, dtype=torch.uint8), torch.arange(14))
    train = BatchLoader(split, 4, shuffle=True, augment=True, seed=5)
    test = BatchLoader(split, 4, shuffle=False, augment=False, seed=0)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=2,
        default_root_dir=path,
    )
    trainer.fit(module, train, test, ckpt_path=resume)


@pytest.mark.filterwarnings("ignore:.*")
def test_fit_and_resume(tmp_path: Path) -> None:
    whole = Recorder(tmp_path / "middle.ckpt")
    fit(whole, tmp_path)
    assert [epoch for epoch, _ in whole.seen] == [0] * 4 + [1] * 4 + [2] * 4
    for epoch in range(3):
        assert sorted(n for e, numbers in whole.seen if e == epoch for n in numbers) == list(range(14))
    assert whole.seen[0][1] != whole.seen[4][1]
    # The two batches of the sanity check take nothing away from the first validation.
    assert whole.validated == list(range(14)) * 3

    resumed = Recorder()
    fit(resumed, tmp_path, tmp_path / "middle.ckpt")
    assert resumed.seen == whole.seen[6:]
