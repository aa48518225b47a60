"""The demo: real servers on a CPU, a load that makes one switch, and a check of all answers.

Its parts, one concept each: `launch` (what is started), `server` (a server process
from start to stop), `traffic` (phases of requests), `client` (one request),
`observe` (polling the server's state), `screen` (what the terminal shows),
`compare` (are the answers equal), `outcome` (did it all hold), `figure` and `report`
(what is left behind), `run` and `main` (all of it in order), `signals` (Ctrl-C).
"""
