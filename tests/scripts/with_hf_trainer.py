"""The Trainer of transformers with a tiny BERT that is not downloaded. It computes more than its data take to load."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Sentences(Dataset):
    def __init__(self, samples: int, length: int) -> None:
        self.samples, self.length = samples, length

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(1000, (self.length,), generator=generator)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.tensor(index % 2)}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **options) -> None:
        if state.is_world_process_zero and logs and "loss" in logs:
            print(f"step {state.global_step}: loss {logs['loss']!r}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--output", help="folder for checkpoints; none are saved without it")
    args = parser.parse_args()

    config = BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512, max_position_embeddings=64
    )
    training = TrainingArguments(
        output_dir=args.output or tempfile.gettempdir(),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=args.accumulate,
        dataloader_num_workers=args.workers,
        eval_strategy="epoch",
        save_strategy="epoch" if args.output else "no",
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
    )
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    Trainer(
        model=model, args=training, train_dataset=Sentences(args.samples, 64), eval_dataset=Sentences(64, 64), callbacks=[PrintLoss()]
    ).train()
    print(f"weights {sum(each.double().sum().item() for each in model.parameters())!r}")


if __name__ == "__main__":
    main()
