# Sourced by deploy_tools and browser_tools, with $folder and $bin set: programs of PATH, or unpacked from the
# distribution's packages, without root and starting no service.

missing() { # of the programs named, those that neither $bin nor PATH has; PATH's are linked
    local program found
    for program; do
        [ -x "$bin/$program" ] && continue
        if found=$(PATH=$PATH:/usr/sbin:/sbin type -P "$program"); then
            ln -sfn "$found" "$bin/$program"
        else
            echo "$program"
        fi
    done
}

from_debian() { # NAME "PACKAGE ..." PROGRAM ...: into $folder/NAME, with a script for each program in $bin
    local packages=$folder/$1 wanted package program found libraries fonts=
    read -ra wanted <<<"$2"
    shift 2
    type -P apt-get dpkg >/dev/null || {
        echo "$0: $* not found on PATH, and no apt-get to get them with: install ${wanted[*]}" >&2
        exit 1
    }
    echo "fetching $* from the distribution's packages"
    rm -rf "$packages"
    mkdir -p "$packages/lists/partial" "$packages/cache/archives/partial" "$packages/root"
    # Lists and archives of its own: those of the machine are root's, and may be empty.
    local options=(-qq -o "Dir::State::Lists=$packages/lists" -o "Dir::Cache=$packages/cache"
        -o Debug::NoLocking=1 -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    # Downloads those packages of what they depend on that the machine lacks.
    apt-get "${options[@]}" install --yes --no-install-recommends --download-only "${wanted[@]}"
    for package in "$packages"/cache/archives/*.deb; do
        dpkg -x "$package" "$packages/root"
    done
    rm -rf "$packages/lists" "$packages/cache"
    libraries=$(find "$packages/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
    [ -e /etc/fonts/fonts.conf ] || fonts="FONTCONFIG_PATH=$(printf %q "$packages/root/etc/fonts")"
    for program; do
        # Chromium's in /usr/bin is a script that looks for it where it would be installed.
        found=$packages/root/usr/lib/$program/$program
        [ -x "$found" ] || found=$(echo "$packages"/root/usr/*bin/"$program")
        [ -x "$found" ] || {
            echo "$0: the distribution's packages ${wanted[*]} have no $program (Ubuntu's Chromium is a snap):" \
                "install it, so that it is on PATH" >&2
            exit 1
        }
        rm -f "$bin/$program" # or a link to what PATH has were written through
        printf '#!/bin/sh\nLD_LIBRARY_PATH=%q XDG_DATA_HOME=%q %s exec %q "$@"\n' "$libraries" \
            "$packages/root/usr/share" "$fonts" "$found" >"$bin/$program"
        chmod +x "$bin/$program"
    done
}
