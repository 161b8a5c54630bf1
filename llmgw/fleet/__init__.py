"""What is known of every node and shard, and since when it is not known; and the values that travel both ways."""
