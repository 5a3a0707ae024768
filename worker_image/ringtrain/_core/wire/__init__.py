"""Wire format between ranks: frames of payload, signatures of collectives, failures, control messages."""
