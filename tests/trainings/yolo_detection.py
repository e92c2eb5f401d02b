"""Train a small YOLO detector with the trainer of ultralytics."""

import sys

from ultralytics import YOLO

if __name__ == "__main__":
    folder, workers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8
    detector = YOLO("yolov8n.yaml")
    detector.train(data=f"{folder}/boxes.yaml", imgsz=96, batch=8, epochs=30, workers=workers, device="cpu", project=f"{folder}/runs")
