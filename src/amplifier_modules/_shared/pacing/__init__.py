"""One rate of requests for all processes of this machine that use a key: `rate_limiter` delays, `pace` says how long."""
