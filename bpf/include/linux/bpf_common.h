/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Empty stand-in: BCC's prelude includes it, nothing here uses it. */
#pragma once
