#!/bin/sh
# Slurm epilog (Epilog=, as root; several ones in a folder by Epilog=/etc/slurm/epilog.d/*): sends what a job
# did with its GPUs to its user, by mail or to a webhook. /etc/rowmill/job-report.conf on the nodes sets:
#   hub=https://hub:9470                   the hub, and the token of a viewer
#   token_file=/etc/rowmill/viewer.token
#   ca=/etc/rowmill/ca.pem                 optional, in place of the usual certificates
#   delay=120                              seconds until the hub has the last rows and the end of the job
#   mail_domain=example.org                mails the page to USER@example.org by sendmail
#   webhook=https://chat.example.org/hook  posts the page as HTML
rowmill=/usr/bin/rowmill sendmail=/usr/sbin/sendmail delay=120 ca='' mail_domain='' webhook=''
settings=${ROWMILL_JOB_REPORT:-/etc/rowmill/job-report.conf}
[ -r "$settings" ] || exit 0
. "$settings"
case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) exit 0 ;; esac
# A name that looks like an option or a header is not mailed to.
user=${SLURM_JOB_USER:-}
case $user in '' | -* | *[!A-Za-z0-9._-]*) mail_domain='' ;; esac

# Sends the report. The first node of the job does so.
send() {
    sleep "$delay"
    page=$(mktemp) || exit 1
    trap 'rm -f "$page"' EXIT
    # A job that held no GPU is unknown to the hub, and nothing is sent.
    "$rowmill" fleet job "$SLURM_JOB_ID" --hub "$hub" --token-file "$token_file" ${ca:+--ca "$ca"} \
        --html "$page" >/dev/null || exit 0
    if [ -n "$mail_domain" ]; then
        {
            printf 'To: %s@%s\nSubject: Job %s\nMIME-Version: 1.0\n' "$user" "$mail_domain" "$SLURM_JOB_ID"
            printf 'Content-Type: text/html; charset=utf-8\n\n'
            cat "$page"
        } | "$sendmail" -t
    fi
    if [ -n "$webhook" ]; then
        curl -fsS --max-time 60 --retry 3 -H 'Content-Type: text/html' --data-binary "@$page" "$webhook"
    fi
}
# Older versions of Slurm have the second name.
nodes=${SLURM_JOB_NODELIST:-${SLURM_NODELIST:-}}
if [ "${1:-}" = later ]; then
    exec </dev/null >/dev/null 2>&1
    send
elif [ "$(scontrol show hostnames "$nodes" | head -n 1)" = "${SLURMD_NODENAME:-}" ]; then
    # Slurm waits for an epilog, and then ends the processes of its group, so the report has a session of its
    # own. The brackets wait until it has begun.
    : "$(setsid -f "$0" later)"
fi
# An epilog that fails would drain the node.
exit 0
