"""Forecast the sales of stores with pytorch-forecasting; its data set builds each sample from the table of all stores."""

import argparse

import lightning.pytorch as lightning
import numpy as np
import pandas as pd
from pytorch_forecasting import TimeSeriesDataSet
from pytorch_forecasting.models import TemporalFusionTransformer

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    days, stores = 300, 40
    sales = pd.DataFrame(
        {"day": np.tile(np.arange(days), stores), "store": np.repeat([f"store {number}" for number in range(stores)], days)}
    )
    sales["weekday"] = (sales.day % 7).astype(str)
    sales["price"] = rng.uniform(1, 2, len(sales))
    sales["sold"] = 20 + 5 * np.sin(sales.day / 7) - 3 * sales.price + rng.normal(size=len(sales))
    data = TimeSeriesDataSet(
        *(sales, "day", "sold", ["store"]),
        max_encoder_length=24,
        max_prediction_length=6,
        static_categoricals=["store"],
        time_varying_known_categoricals=["weekday"],
        time_varying_known_reals=["day", "price"],
        time_varying_unknown_reals=["sold"],
    )
    loader = data.to_dataloader(train=True, batch_size=64, num_workers=args.workers, persistent_workers=args.workers > 0)
    model = TemporalFusionTransformer.from_dataset(data, hidden_size=8, hidden_continuous_size=4, attention_head_size=1, learning_rate=0.01)
    trainer = lightning.Trainer(max_epochs=args.epochs, accelerator="cpu", logger=False, enable_checkpointing=False, gradient_clip_val=0.1)
    trainer.fit(model, loader)
