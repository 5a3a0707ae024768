"""The agent's part of an elastic job: start rank processes, send them new worlds, and stop them."""
