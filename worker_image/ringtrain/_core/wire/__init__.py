"""What travels between ranks, as bytes: frames of payload, signatures of collectives, failures, control."""
