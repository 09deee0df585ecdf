"""Engines that are not ours, as oracles and as yardsticks. None is needed to use plegate; each is found or refused."""
