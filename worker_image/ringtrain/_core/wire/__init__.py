"""Formats of messages between ranks: tensor frames, signatures of collectives, failures and control messages."""
