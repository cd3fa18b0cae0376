"""The local workbench: files dropped on a page, results beside it, nothing leaves the machine.

server    the socket, the connections and their limits, a clean end
guard     who may ask: the right host, the same origin, the token
login_throttle  failed logins, limited by network
app       addresses and what each answers
peer_user       whose connection it is, on this machine
private_folder  where all is kept, closed to others
uploads   files that came in, in a private folder, under numbers of ours
tasks     what can be asked of a file: verbs with their options
jobs      a queue, two workers, a bounded child process for each job
history   finished results in SQLite: each once, none half
show      a result as part of the page, by the drawing code of the report
static/   the page itself
"""
