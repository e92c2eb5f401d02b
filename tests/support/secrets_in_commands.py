"""Commands with secrets, as typed and as logs and records show them."""

from __future__ import annotations

COMMANDS = [
    ("--api-key X", "--api-key ***"),
    ("--api-key=X --lr 0.1", "--api-key=*** --lr 0.1"),
    ("--password=a=b", "--password=***"),
    ("--hf-token X --amp", "--hf-token *** --amp"),
    ("--token --amp", "--token --amp"),
    ("HF_TOKEN=X ddpbench resnet50", "HF_TOKEN=*** ddpbench resnet50"),
    ("WANDB_API_KEY=X AWS_SECRET_ACCESS_KEY=Y", "WANDB_API_KEY=*** AWS_SECRET_ACCESS_KEY=***"),
    ("--db_passwd X --passphrase Y --credentials Z --auth=W", "--db_passwd *** --passphrase *** --credentials *** --auth=***"),
    ("SECRET_OF_MINE=X KEY_2=Y", "SECRET_OF_MINE=*** KEY_2=***"),
    ("--data-dir s3://user:pass@host/images", "--data-dir s3://***@host/images"),
    ("--data-dir=https://user@host/images", "--data-dir=https://***@host/images"),
    ("--login hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567", "--login ***"),
    ("--key-file=/home/me/ghp_0123456789abcdef0123456789abcdef0123", "--key-file=/home/me/***"),
    ("-c AKIAIOSFODNN7EXAMPLE sk-ant-api03-0123456789abcdef", "-c *** ***"),
    ("--jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc_DEF-123", "--jwt ***"),
    (
        "--model sk-learn --arch hf_bert --revision 0123456789abcdef0123456789abcdef01234567",
        "--model sk-learn --arch hf_bert --revision 0123456789abcdef0123456789abcdef01234567",
    ),
    ("--keyboard 1 --key-frames 2 --max-tokens 3 --monkey=4", "--keyboard 1 --key-frames 2 --max-tokens 3 --monkey=4"),
    ("--author=me --tokenizer bert --authority x", "--author=me --tokenizer bert --authority x"),
    ("resnet50 --precision fp32,amp-fp16 -o runs/token", "resnet50 --precision fp32,amp-fp16 -o runs/token"),
]
"""(as typed, masked)."""
