"""Papers as data: their claims, the experiments behind them, and what we find when we run those again."""
