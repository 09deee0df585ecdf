"""The gate's result as one HTML page that needs nothing else."""
