"""What a training would do with other settings, from what was measured of it: the measurements, the change, the price."""
