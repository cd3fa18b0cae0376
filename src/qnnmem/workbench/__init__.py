"""The local workbench: a page that shows results for dropped files; nothing leaves the machine.

server          the socket, the connections and their limits, a clean shutdown
guard           access control: host, origin, token; limits failed logins
app             the routes and their handlers
answers         responses: JSON, files of the page, errors
limits          limits: bytes, files, jobs, seconds
private_folder  the folder of all files, closed to other users
intake          request bodies, bounded in time and size
uploads         uploaded files in the private folder, under random names
tasks           the verbs and options for each kind of file
controls        options as controls on the page, and validation of requests
jobs            a queue and two workers
job_run         one job in a bounded child process; job_child is its program
job_folder      the folder of a job, and its output files
history         finished results in SQLite: unique, never partial, repaired if damaged
show            a result as part of the page, drawn like a report
bench           files, jobs and history together
static/         the page itself
"""
