"""A LightningModule, its Trainer and a validation loader. Its images are decoded by workers."""

import argparse
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, samples: int, read_ms: float) -> None:
        self.samples, self.read_ms = samples, read_ms

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.read_ms / 1000)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(1, 16, 16, generator=generator), index % 10


class Digits(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(256, 512), nn.ReLU())
        self.head = nn.Linear(512, 10)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        self.last_loss = nn.functional.cross_entropy(self.head(self.backbone(images)), labels)
        return self.last_loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.head(self.backbone(images)).argmax(1) == labels).float().mean())

    def on_train_epoch_end(self) -> None:
        print(f"epoch {self.current_epoch}: loss {self.last_loss.item()!r}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--read-ms", type=float, default=2.0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--output", help="folder for checkpoints; none are saved without it")
    args = parser.parse_args()

    L.seed_everything(0, verbose=False)
    train = DataLoader(Images(args.samples, args.read_ms), batch_size=16, shuffle=True, num_workers=args.workers)
    validation = DataLoader(Images(64, args.read_ms), batch_size=16)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="auto",
        devices=args.devices,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=args.output is not None,
        callbacks=[ModelCheckpoint(args.output)] if args.output else [],
        default_root_dir=args.output,
    )
    trainer.fit(Digits(), train, validation)


if __name__ == "__main__":
    main()
