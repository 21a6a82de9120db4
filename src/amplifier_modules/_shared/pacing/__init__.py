"""How fast all processes of this machine may send requests with one key: `gate` is the entrance, `pace` decides."""
