"""What launcher, operator and ranks cost by the number of workers."""
