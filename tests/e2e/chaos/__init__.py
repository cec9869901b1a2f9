"""Consumers and brokers that are killed at random: the program of a consumer, its group, and what must hold."""
