#!/bin/sh
# All that people do before a run, for a trial in four folders on one machine: server, hospital-a, hospital-b, hospital-c.
# Between real machines each person does a part of this, and files travel: see docs/sites.md.
#   sh prepare.sh FOLDER [NAME OF THE SERVER]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
server=${2:-localhost}
cd "$1"
if [ -f server/agreement.toml ]; then
    echo "everything is there"
    exit
fi
for place in server hospital-a hospital-b hospital-c; do
    mkdir -p "$place"
    cp "$here/study.toml" "$here/schema.toml" "$place"
    (
        cd "$place"
        python "$here/make_tables.py" "$([ "$place" = server ] && echo reference || echo "$place")"
        sordino identity new "$place"
    )
done
for site in hospital-a hospital-b hospital-c; do
    (
        cd "$site"
        sordino data announce study.toml --data "$site.csv" --name "$site" --identity "$site" --out "$site.toml"
        cp "$site.toml" "$site.pub" ../server
    )
    (cd server && sordino identity allow "$site" "$site.pub" --list sites.toml)
done
(cd server && sordino certificates certs --server "$server" --site hospital-a --site hospital-b --site hospital-c)
for site in hospital-a hospital-b hospital-c; do
    mv "server/certs/$site" "$site/certs"
done
(cd server && sordino data agree hospital-a.toml hospital-b.toml hospital-c.toml --out agreement.toml)
