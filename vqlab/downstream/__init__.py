"""What can be done with a tokenizer once it is trained: probes of its tokens, priors over its ids."""
