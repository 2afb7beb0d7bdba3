"""What a model and an installation are like: doctor, benchmark, golden runs, inspection."""
