"""The local workbench: files dropped on a page, results beside it, nothing leaves the machine.

server          the socket, the connections and their limits, a clean end
guard           who may ask: the right host, the same origin, the token; failed logins, limited
app             addresses and what each answers
answers         responses: JSON, files of the page, errors
limits          how much is taken: bytes, files, jobs, seconds
private_folder  where everything is kept, closed to others
intake          bodies of requests, bounded in time and size
uploads         files that came in, in the private folder, under numbers of ours
tasks           what can be asked of a file: verbs with their options
controls        options as the page shows them, and the check of a request
jobs            a queue and two workers
job_run         one job in a bounded child process, whose program is job_child
job_folder      the folder of a job, and the files that it made
history         finished results in SQLite: each once, none half; mended when damaged
show            a result as part of the page, by the drawing code of the report
bench           all of it together
static/         the page itself
"""
