"use strict";
/* A page that consists of sections with tables, pictures and commands, such as that of `lesson simulate --html`. */
Page.sections(Page.data.sections);
