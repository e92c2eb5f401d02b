"""Predict whether a household's income is high, with TabNet."""

import argparse

import numpy as np
from pytorch_tabnet.tab_model import TabNetClassifier

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    households = rng.normal(size=(40_000, 24)).astype(np.float32)
    is_high = (households[:, :3].sum(1) + rng.normal(size=40_000) > 0).astype(np.int64)
    model = TabNetClassifier(n_d=8, n_a=8, n_steps=3, seed=0)
    model.fit(households, is_high, max_epochs=args.epochs, batch_size=1024, virtual_batch_size=128, num_workers=args.workers)
